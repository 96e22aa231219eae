// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

use super::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait CompactBackend: Backend {
    /// See [`super::compact`]. Of the tracks the first `count` are ones, and `fillers` are only looked at if there are
    /// some.
    #[fusion(meta = outputs)]
    fn compact_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        track_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        indices: IntTensor<Self>,
        fillers: IntTensor<Self>,
        count: usize,
        filled: bool,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    );
}

/// What [`CompactBackend::compact_entries`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    keys: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    track_0: &TensorSpec,
    track_1: &TensorSpec,
    track_2: &TensorSpec,
    track_3: &TensorSpec,
    indices: &TensorSpec,
    _fillers: &TensorSpec,
    count: &usize,
    _filled: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let kept = indices.shape[2];
    let with = |shape: &Shape| super::with_columns(shape, kept);
    let track = |index: usize, track: &TensorSpec| {
        let shape = if index < *count { with(&track.shape) } else { super::no_track() };
        TensorSpec::new(shape, burn::tensor::DType::F32)
    };
    (
        TensorSpec::new(with(&keys.shape), keys.dtype),
        TensorSpec::new(with(&values.shape), values.dtype),
        TensorSpec::new(with(&positions.shape), positions.dtype),
        track(0, track_0),
        track(1, track_1),
        track(2, track_2),
        track(3, track_3),
    )
}

impl CompactBackend for CubeBackend {
    fn compact_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        track_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        indices: IntTensor<Self>,
        fillers: IntTensor<Self>,
        count: usize,
        filled: bool,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    ) {
        let tracks = [track_0, track_1, track_2, track_3];
        let tracks = tracks.into_iter().take(count).collect();
        launch([keys, values], positions, tracks, indices, filled.then_some(fillers))
    }
}
