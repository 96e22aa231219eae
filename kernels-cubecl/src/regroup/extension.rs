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
pub(super) trait RegroupBackend: Backend {
    /// See [`super::regroup`]: positions, entries, centers, norms and tracks, of which the first `count` are ones.
    /// Of each head `fillers` entries and `before` columns are missing, or as many as `missing` says where they `differ`.
    #[fusion(meta = outputs)]
    fn regroup(
        columns: IntTensor<Self>,
        classes: IntTensor<Self>,
        order: IntTensor<Self>,
        rows: IntTensor<Self>,
        centers: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        norms: FloatTensor<Self>,
        lengths: FloatTensor<Self>,
        track_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        count: usize,
        fillers: usize,
        before: usize,
        differ: bool,
    ) -> (
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    );
}

/// What [`RegroupBackend::regroup`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    columns: &TensorSpec,
    _classes: &TensorSpec,
    _order: &TensorSpec,
    _rows: &TensorSpec,
    centers: &TensorSpec,
    _missing: &TensorSpec,
    _positions: &TensorSpec,
    _norms: &TensorSpec,
    _lengths: &TensorSpec,
    track_0: &TensorSpec,
    track_1: &TensorSpec,
    track_2: &TensorSpec,
    track_3: &TensorSpec,
    count: &usize,
    _fillers: &usize,
    _before: &usize,
    _differ: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec, TensorSpec)
{
    let width = columns.shape[2];
    let f32 = |shape| TensorSpec::new(shape, DType::F32);
    let track =
        |index: usize, track: &TensorSpec| f32(tracks::shape(&track.shape, width, index < *count));
    (
        columns.clone(),
        columns.clone(),
        centers.clone(),
        f32(columns.shape.clone()),
        track(0, track_0),
        track(1, track_1),
        track(2, track_2),
        track(3, track_3),
    )
}

impl RegroupBackend for CubeBackend {
    fn regroup(
        columns: IntTensor<Self>,
        classes: IntTensor<Self>,
        order: IntTensor<Self>,
        rows: IntTensor<Self>,
        centers: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        norms: FloatTensor<Self>,
        lengths: FloatTensor<Self>,
        track_0: FloatTensor<Self>,
        track_1: FloatTensor<Self>,
        track_2: FloatTensor<Self>,
        track_3: FloatTensor<Self>,
        count: usize,
        fillers: usize,
        before: usize,
        differ: bool,
    ) -> (
        IntTensor<Self>,
        IntTensor<Self>,
        IntTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    ) {
        let tracks = [track_0, track_1, track_2, track_3].into_iter().take(count).collect();
        let ints = [columns, classes, order, rows, centers, missing, positions];
        launch(ints, [norms, lengths], tracks, [fillers, before], differ)
    }
}
