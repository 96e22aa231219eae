mod extension;
mod kernel;

use briquette_ops::{RegroupInput, RegroupOutput, Result};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::RegroupBackend;
use crate::{
    check::Check,
    missing::Missing,
    tracks::{self, MOST_TRACKS},
};

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
    check.at_most("the number of tracks", tracks.len(), MOST_TRACKS)?;
    for track in tracks.iter() {
        let of_heads = track.dims()[1];
        let grouped = of_heads.is_multiple_of(heads);
        check.value("the heads of a track", of_heads, grouped, format!("a multiple of {heads}"))?;
        check.shape("a track", track.dims(), [batch, of_heads, before])?;
        check.f32("a track", track.dtype())?;
        check.countable("a track", &track.dims())?;
    }
    check.countable("columns", &dims)?;
    check.countable("rows", &all)?;
    check.cubes([width.max(most).div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(13 + 2 * tracks.len())?;
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
    let count = tracks.len();
    let norms = norms.into_dispatch();
    let mut given = tracks.clone().into_iter();
    let mut track = || given.next().map_or_else(|| norms.clone(), Tensor::into_dispatch);
    let given: [_; MOST_TRACKS] = std::array::from_fn(|_| track());
    let [track_0, track_1, track_2, track_3] = given;
    let (positions, entry, centers, norms, track_0, track_1, track_2, track_3) = Dispatch::regroup(
        columns.into_dispatch(),
        classes.cast(ints).into_dispatch(),
        order.cast(ints).into_dispatch(),
        rows.cast(ints).into_dispatch(),
        centers.cast(ints).into_dispatch(),
        missing,
        positions.cast(ints).into_dispatch(),
        norms,
        lengths.into_dispatch(),
        track_0,
        track_1,
        track_2,
        track_3,
        count,
        fillers,
        first,
        differ,
    );
    let mut moved = [track_0, track_1, track_2, track_3].into_iter();
    Ok(RegroupOutput {
        positions: Tensor::from_dispatch(positions),
        entry: Tensor::from_dispatch(entry),
        centers: Tensor::from_dispatch(centers),
        norms: Tensor::from_dispatch(norms),
        // As many come back as went in.
        tracks: tracks.map(|track| moved.next().map_or(track, Tensor::from_dispatch)),
    })
}

type Outputs = (
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
    CubeTensor,
);

/// Columns, classes, order, rows, centers, what is missing, positions; norms and lengths.
fn launch(
    ints: [CubeTensor; 7],
    floats: [CubeTensor; 2],
    tracks: Vec<CubeTensor>,
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
    let track =
        |track: &CubeTensor| empty(tracks::shape(&track.shape(), shape[2], true), DType::F32);
    let new_tracks: Vec<CubeTensor> = tracks.iter().map(track).collect();
    let units = shape[2].max(centers.shape()[2]);
    let of_tracks =
        |tracks: &[CubeTensor]| tracks.iter().cloned().map(CubeTensor::into_tensor_arg).collect();
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
        of_tracks(&tracks),
        positions.clone().into_tensor_arg(),
        entry.clone().into_tensor_arg(),
        centers.clone().into_tensor_arg(),
        norms.clone().into_tensor_arg(),
        of_tracks(&new_tracks),
        fillers,
        before,
        differ,
        dtype_to_storage_type(dtype),
    );
    let mut new_tracks = new_tracks.into_iter();
    let mut track = || new_tracks.next().unwrap_or_else(|| empty([1, 1, 1].into(), DType::F32));
    (positions, entry, centers, norms, track(), track(), track(), track())
}
