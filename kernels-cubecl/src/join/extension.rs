// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch;
#[cfg(feature = "fusion")]
use crate::tracks;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait JoinBackend: Backend {
    /// See [`super::join`]: positions and tracks, of which the first `count` are ones.
    #[fusion(meta = outputs)]
    fn join(
        positions: IntTensor<Self>,
        more_positions: IntTensor<Self>,
        track_0: FloatTensor<Self>,
        more_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        more_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        more_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        more_3: FloatTensor<Self>,
        count: usize,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// What [`JoinBackend::join`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    positions: &TensorSpec,
    more_positions: &TensorSpec,
    track_0: &TensorSpec,
    _more_0: &TensorSpec,
    track_1: &TensorSpec,
    _more_1: &TensorSpec,
    track_2: &TensorSpec,
    _more_2: &TensorSpec,
    track_3: &TensorSpec,
    _more_3: &TensorSpec,
    count: &usize,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let width = positions.shape[2] + more_positions.shape[2];
    let track = |index: usize, track: &TensorSpec| {
        let shape = tracks::shape(&track.shape, width, index < *count);
        TensorSpec::new(shape, DType::F32)
    };
    let shape = tracks::shape(&positions.shape, width, true);
    (
        TensorSpec::new(shape, positions.dtype),
        track(0, track_0),
        track(1, track_1),
        track(2, track_2),
        track(3, track_3),
    )
}

impl JoinBackend for CubeBackend {
    fn join(
        positions: IntTensor<Self>,
        more_positions: IntTensor<Self>,
        track_0: FloatTensor<Self>,
        more_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        more_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        more_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        more_3: FloatTensor<Self>,
        count: usize,
    ) -> (IntTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>)
    {
        let tracks = [track_0, track_1, track_2, track_3].into_iter().take(count).collect();
        let more = [more_0, more_1, more_2, more_3].into_iter().take(count).collect();
        launch([positions, more_positions], tracks, more)
    }
}
