mod extension;
mod kernel;

use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Int, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::JoinBackend;
use crate::{MOST_TRACKS, Result, check::Check, tracks};

/// What is known of the columns of a layer besides their keys and values.
#[derive(Clone, Debug)]
pub struct Columns {
    /// `[batch, heads, columns]`
    pub positions: Tensor<3, Int>,
    /// What is counted of each, f32, `[batch, n · heads, columns]` each. [`MOST_TRACKS`] at most.
    pub tracks: Vec<Tensor<3>>,
}

/// Columns and others behind them, in one launch.
///
/// A unit a column: it reads and writes its position and the numbers of its tracks.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes or types do not fit, there are no columns on a side, or the device has no
/// kernels or cannot launch so much.
pub fn join(before: Columns, behind: Columns) -> Result<Columns> {
    let check = Check::new("join", &before.positions.device())?;
    let [batch, heads, width] = before.positions.dims();
    let more = behind.positions.dims()[2];
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", width)?;
    some("columns behind them", more)?;
    check.shape("positions behind", behind.positions.dims(), [batch, heads, more])?;
    check.at_most("the number of tracks", before.tracks.len(), MOST_TRACKS)?;
    let (count, of_both) = (before.tracks.len(), behind.tracks.len());
    check.value("the tracks behind", of_both, of_both == count, count.to_string())?;
    for (track, behind) in before.tracks.iter().zip(&behind.tracks) {
        let of_heads = track.dims()[1];
        let grouped = of_heads.is_multiple_of(heads);
        check.value("the heads of a track", of_heads, grouped, format!("a multiple of {heads}"))?;
        check.shape("a track", track.dims(), [batch, of_heads, width])?;
        check.shape("a track behind", behind.dims(), [batch, of_heads, more])?;
        check.f32("a track", track.dtype())?;
        check.f32("a track behind", behind.dtype())?;
        check.countable("a track", &[batch, of_heads, width + more])?;
    }
    check.countable("columns", &[batch, heads, width + more])?;
    check.cubes([(width + more).div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(3 + 3 * count)?;
    let ints = before.positions.dtype();
    // A tensor stands in for one that is not there.
    let stands_in = match before.tracks.first() {
        Some(track) => track.clone(),
        None => Tensor::empty([1, 1, 1], &before.positions.device()),
    };
    let mut all = before.tracks.into_iter().zip(behind.tracks);
    let mut next = || {
        let (track, more) = all.next().unwrap_or_else(|| (stands_in.clone(), stands_in.clone()));
        (track.into_dispatch(), more.into_dispatch())
    };
    let given: [_; MOST_TRACKS] = std::array::from_fn(|_| next());
    let [(track_0, more_0), (track_1, more_1), (track_2, more_2), (track_3, more_3)] = given;
    let (positions, track_0, track_1, track_2, track_3) = Dispatch::join(
        before.positions.into_dispatch(),
        behind.positions.cast(ints).into_dispatch(),
        track_0,
        more_0,
        track_1,
        more_1,
        track_2,
        more_2,
        track_3,
        more_3,
        count,
    );
    let tracks = [track_0, track_1, track_2, track_3];
    Ok(Columns {
        positions: Tensor::from_dispatch(positions),
        tracks: tracks.into_iter().take(count).map(Tensor::from_dispatch).collect(),
    })
}

fn launch(
    [positions, more_positions]: [CubeTensor; 2],
    tracks: Vec<CubeTensor>,
    more: Vec<CubeTensor>,
) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    let (client, device) = (positions.client.clone(), positions.device.clone());
    let dtype = positions.dtype;
    let width = positions.shape()[2] + more_positions.shape()[2];
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let shape = tracks::shape(&positions.shape(), width, true);
    let all_positions = empty(shape.clone(), dtype);
    let track = |track: &CubeTensor| empty(tracks::shape(&track.shape(), width, true), DType::F32);
    let all_tracks: Vec<CubeTensor> = tracks.iter().map(track).collect();
    let args = |tracks: Vec<CubeTensor>| tracks.into_iter().map(CubeTensor::into_tensor_arg);
    kernel::join::launch(
        &client,
        CubeCount::Static(width.div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        positions.into_tensor_arg(),
        more_positions.into_tensor_arg(),
        args(tracks).collect(),
        args(more).collect(),
        all_positions.clone().into_tensor_arg(),
        args(all_tracks.clone()).collect(),
        dtype_to_storage_type(dtype),
    );
    let mut all_tracks = all_tracks.into_iter();
    let mut track = || all_tracks.next().unwrap_or_else(|| empty([1, 1, 1].into(), DType::F32));
    (all_positions, track(), track(), track(), track())
}
