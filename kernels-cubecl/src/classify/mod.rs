mod extension;
mod kernel;

use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Int, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::ClassifyBackend;
use crate::{Result, check::Check, missing::Missing};

/// What [`classify`] works on: columns, each of which belongs to a row, and what has become of the rows.
#[derive(Clone, Debug)]
pub struct Classify<'a> {
    /// The row of each column, `[batch, heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// The entry each row is in now, counted from 1; 0 is none. `[batch, heads, rows]`
    pub entry: Tensor<3, Int>,
    /// The column at the center of each entry, `[batch, heads, entries]`, any at the fillers that heads of fewer begin
    /// with.
    pub centers: Tensor<3, Int>,
    /// Entries of each batch row and head, rows first.
    pub counts: &'a [usize],
    /// Less than zero where a column holds nothing, `[batch, heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// What columns are ranked by, f32, `[batch, heads, columns]`.
    pub scores: Tensor<3>,
}

/// For each column the entry it is in now, counted from 0, or −1; and what it is ranked by: a center `f32::MAX`, others
/// their score, those in no entry `f32::MIN`. Both `[batch, heads, columns]`. With it EMS finds which tokens stay.
///
/// A unit a column, one launch. It reads five numbers a column and writes two.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes do not fit, there is no row, column or entry, or the device has no
/// kernels or cannot launch so much.
pub fn classify(input: Classify<'_>) -> Result<(Tensor<3, Int>, Tensor<3>)> {
    let check = Check::new("classify", &input.rows.device())?;
    let Classify { rows, entry, centers, counts, positions, scores } = input;
    let dims @ [batch, heads, columns] = rows.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    some("rows", entry.dims()[2])?;
    some("entries", centers.dims()[2])?;
    check.shape("entry", entry.dims(), [batch, heads, entry.dims()[2]])?;
    check.shape("centers", centers.dims(), [batch, heads, centers.dims()[2]])?;
    check.shape("positions", positions.dims(), dims)?;
    check.shape("scores", scores.dims(), dims)?;
    check.f32("scores", scores.dtype())?;
    check.countable("columns", &dims)?;
    check.cubes([columns.div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(8)?;
    let missing = Missing::new(&check, counts, batch * heads, centers.dims()[2])?;
    let ints = rows.dtype();
    let (fillers, differ) = missing.same();
    // What is not looked at: another tensor stands in.
    let missing = match missing.list(&rows) {
        Some(missing) => missing.into_dispatch(),
        None => rows.clone().into_dispatch(),
    };
    let (classes, ranks) = Dispatch::classify(
        rows.into_dispatch(),
        entry.cast(ints).into_dispatch(),
        centers.cast(ints).into_dispatch(),
        missing,
        positions.cast(ints).into_dispatch(),
        scores.into_dispatch(),
        fillers,
        differ,
    );
    Ok((Tensor::from_dispatch(classes), Tensor::from_dispatch(ranks)))
}

/// Rows, entries of rows, centers, what is missing, positions.
fn launch(
    ints: [CubeTensor; 5],
    scores: CubeTensor,
    fillers: usize,
    differ: bool,
) -> (CubeTensor, CubeTensor) {
    let (client, device) = (scores.client.clone(), scores.device.clone());
    let (shape, dtype) = (ints[0].shape(), ints[0].dtype);
    let empty = |dtype| empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
    let (classes, ranks) = (empty(dtype), empty(DType::F32));
    let [rows, entry, centers, missing, positions] = ints.map(CubeTensor::into_tensor_arg);
    kernel::classify::launch(
        &client,
        CubeCount::Static(shape[2].div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        rows,
        entry,
        centers,
        missing,
        positions,
        scores.into_tensor_arg(),
        classes.clone().into_tensor_arg(),
        ranks.clone().into_tensor_arg(),
        fillers,
        differ,
        dtype_to_storage_type(dtype),
    );
    (classes, ranks)
}
