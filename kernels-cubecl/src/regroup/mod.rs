mod extension;
mod kernel;

use briquette_ops::{RegroupInput, RegroupOutput, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::RegroupBackend;
use crate::{check::Check, missing::Missing, tracks};

/// What is known of columns, where they go: the end of a step of EMS, whose entries have become others.
///
/// A unit a new column, one launch: it follows the column to the one it was, and that to its row. Of each column it reads
/// seven numbers and those of its tracks, and writes three and those.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row, column or entry, or the device has no
/// kernels or cannot launch so much.
pub fn regroup(input: RegroupInput<'_>) -> Result<RegroupOutput> {
    let check = Check::new("regroup", &input.columns.device())?;
    let RegroupInput { columns, classes, order, counts, centers, entries, .. } = input;
    let RegroupInput { rows, norms, lengths, positions, tracks, .. } = input;
    let dims @ [batch, heads, width] = columns.dims();
    let (before, most) = (rows.dims()[2], centers.dims()[2]);
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("width", width)?;
    some("columns", before)?;
    some("rows", lengths.dims()[2])?;
    some("entries", most)?;
    let all = [batch, heads, before];
    check.shape("classes", classes.dims(), dims)?;
    check.shape("order", order.dims(), dims)?;
    check.shape("centers", centers.dims(), [batch, heads, most])?;
    check.shape("rows", rows.dims(), all)?;
    check.shape("norms", norms.dims(), all)?;
    check.shape("lengths", lengths.dims(), [batch, heads, lengths.dims()[2]])?;
    check.shape("positions", positions.dims(), all)?;
    check.f32("norms", norms.dtype())?;
    check.f32("lengths", lengths.dtype())?;
    tracks::check(&check, &tracks, all)?;
    check.countable("columns", &dims)?;
    check.countable("rows", &all)?;
    check.cubes([width.max(most).div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(if tracks.is_empty() { 13 } else { 15 })?;
    let lists = batch * heads;
    let of_entries = Missing::new(&check, entries, lists, most)?;
    let of_columns = Missing::new(&check, counts, lists, width)?;
    let (fillers, entries_differ) = of_entries.same();
    let (first, columns_differ) = of_columns.same();
    let differ = entries_differ || columns_differ;
    // What is not looked at: another tensor stands in.
    let missing = match differ {
        true => of_entries.beside(&of_columns, &columns).into_dispatch(),
        false => columns.clone().into_dispatch(),
    };
    let ints = columns.dtype();
    let norms = norms.into_dispatch();
    // What is not looked at: another tensor stands in.
    let counted = !tracks.is_empty();
    let of_tracks =
        tracks.stacked().map_or_else(|| norms.clone(), |tracks| tracks.clone().into_dispatch());
    let (positions, entry, centers, norms, of_tracks) = Dispatch::regroup(
        columns.into_dispatch(),
        classes.cast(ints).into_dispatch(),
        order.cast(ints).into_dispatch(),
        rows.cast(ints).into_dispatch(),
        centers.cast(ints).into_dispatch(),
        missing,
        positions.cast(ints).into_dispatch(),
        norms,
        lengths.into_dispatch(),
        of_tracks,
        counted,
        fillers,
        first,
        differ,
    );
    Ok(RegroupOutput {
        positions: Tensor::from_dispatch(positions),
        entry: Tensor::from_dispatch(entry),
        centers: Tensor::from_dispatch(centers),
        norms: Tensor::from_dispatch(norms),
        tracks: tracks.map(|_| Tensor::from_dispatch(of_tracks)),
    })
}

type Outputs = (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor);

/// This shape with so many columns.
fn of_width(shape: &Shape, width: usize) -> Shape {
    Shape::from([shape[0], shape[1], width])
}

/// The shape of tracks that are not there: a buffer of nothing is not one.
fn no_tracks() -> Shape {
    Shape::from([1, 1, 1])
}

/// Columns, classes, order, rows, centers, what is missing, positions; norms and lengths.
fn launch(
    ints: [CubeTensor; 7],
    floats: [CubeTensor; 2],
    tracks: Option<CubeTensor>,
    [fillers, before]: [usize; 2],
    differ: bool,
) -> Outputs {
    let columns = &ints[0];
    let (client, device, dtype) = (columns.client.clone(), columns.device.clone(), columns.dtype);
    let shape = columns.shape();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let [positions, entry] = [(); 2].map(|()| empty(shape.clone(), dtype));
    let centers = empty(ints[4].shape(), dtype);
    let norms = empty(shape.clone(), DType::F32);
    let like = |tracks: &CubeTensor| of_width(&tracks.shape(), shape[2]);
    let new_tracks = empty(tracks.as_ref().map_or_else(no_tracks, like), DType::F32);
    let units = shape[2].max(centers.shape()[2]);
    let counted = tracks.is_some();
    let stand_in = floats[0].clone();
    let [columns, classes, order, rows, old_centers, missing, old_positions] =
        ints.map(CubeTensor::into_tensor_arg);
    let [old_norms, lengths] = floats.map(CubeTensor::into_tensor_arg);
    kernel::regroup::launch(
        &client,
        CubeCount::Static(units.div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        columns,
        classes,
        order,
        rows,
        old_centers,
        missing,
        old_positions,
        old_norms,
        lengths,
        tracks.unwrap_or(stand_in).into_tensor_arg(),
        positions.clone().into_tensor_arg(),
        entry.clone().into_tensor_arg(),
        centers.clone().into_tensor_arg(),
        norms.clone().into_tensor_arg(),
        new_tracks.clone().into_tensor_arg(),
        fillers,
        before,
        counted,
        differ,
        dtype_to_storage_type(dtype),
    );
    (positions, entry, centers, norms, new_tracks)
}
