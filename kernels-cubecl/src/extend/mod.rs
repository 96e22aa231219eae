mod extension;
mod kernel;

use briquette_ops::{ExtendInput, ExtendOutput, Result, constant_ints};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::ExtendBackend;
use crate::check::Check;

/// A table of entries that tokens share (EMS) with the tokens that have come since, which have entries of their own.
///
/// A unit a column and a row, one launch. It reads two numbers a token and one an entry, and writes as many.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or counts do not fit, there is no token, entry, column or row, or the
/// device has no kernels or cannot launch so much.
pub fn extend(input: ExtendInput<'_>) -> Result<ExtendOutput> {
    let check = Check::new("extend", &input.entry.device())?;
    let ExtendInput { entry, norms, centers, counts, columns, rows } = input;
    let dims @ [batch, heads, width] = entry.dims();
    let height = centers.dims()[2];
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("width", width)?;
    some("entries", height)?;
    some("columns", columns)?;
    some("rows", rows)?;
    check.shape("norms", norms.dims(), dims)?;
    check.shape("centers", centers.dims(), [batch, heads, height])?;
    check.f32("norms", norms.dtype())?;
    let lists = batch * heads;
    check.value("the length of counts", counts.len(), counts.len() == lists, lists.to_string())?;
    let most = |what, found: usize, most: usize| {
        check.value(what, found, found <= most, format!("at most {most}"))
    };
    for &[tokens, entries, own] in counts {
        most("tokens", tokens, width)?;
        most("entries", entries, height)?;
        most("tokens with those behind", tokens + own, columns)?;
        most("entries with those behind", entries + own, rows)?;
    }
    check.countable("columns", &[batch, heads, columns])?;
    check.countable("rows", &[batch, heads, rows])?;
    check.cubes([columns.max(rows).div_ceil(kernel::UNITS), lists, 1])?;
    check.tensors(7)?;
    let [tokens, entries, own] = counts.first().copied().unwrap_or_default();
    let differ = counts.iter().any(|count| *count != [tokens, entries, own]);
    // What is not looked at: another tensor stands in.
    let list = if differ {
        let numbers: Vec<i64> = counts.iter().flatten().map(|&count| count as i64).collect();
        let numbers = constant_ints("extend", numbers, [lists, 3], &entry.device());
        numbers.cast(entry.dtype()).into_dispatch()
    } else {
        entry.clone().into_dispatch()
    };
    let ints = entry.dtype();
    let (row_of, norms, centers) = Dispatch::extend(
        entry.into_dispatch(),
        norms.into_dispatch(),
        centers.cast(ints).into_dispatch(),
        list,
        columns,
        rows,
        tokens,
        entries,
        own,
        differ,
    );
    Ok(ExtendOutput {
        rows: Tensor::from_dispatch(row_of),
        norms: Tensor::from_dispatch(norms),
        centers: Tensor::from_dispatch(centers),
    })
}

/// Entries of tokens, centers, counts.
fn launch(
    ints: [CubeTensor; 3],
    norms: CubeTensor,
    [columns, rows]: [usize; 2],
    [tokens, entries, own]: [usize; 3],
    differ: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (client, device, dtype) = (norms.client.clone(), norms.device.clone(), ints[0].dtype);
    let shape = ints[0].shape();
    let empty = |width: usize, dtype| {
        let shape = Shape::from([shape[0], shape[1], width]);
        empty_device_dtype(client.clone(), device.clone(), shape, dtype)
    };
    let (row_of, all_norms) = (empty(columns, dtype), empty(columns, DType::F32));
    let all_centers = empty(rows, dtype);
    let [entry, centers, counts] = ints.map(CubeTensor::into_tensor_arg);
    kernel::extend::launch(
        &client,
        CubeCount::Static(
            columns.max(rows).div_ceil(kernel::UNITS) as u32,
            (shape[0] * shape[1]) as u32,
            1,
        ),
        CubeDim::new_1d(kernel::UNITS as u32),
        entry,
        norms.into_tensor_arg(),
        centers,
        counts,
        row_of.clone().into_tensor_arg(),
        all_norms.clone().into_tensor_arg(),
        all_centers.clone().into_tensor_arg(),
        tokens,
        entries,
        own,
        differ,
        dtype_to_storage_type(dtype),
    );
    (row_of, all_norms, all_centers)
}
