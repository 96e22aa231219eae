// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ClassifyBackend: Backend {
    /// See [`super::classify`]: classes and ranks. Of the entries of each head `fillers` are missing, or as many as
    /// `missing` says where heads `differ`.
    #[fusion(meta = outputs)]
    fn classify(
        rows: IntTensor<Self>,
        entry: IntTensor<Self>,
        centers: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        fillers: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>);
}

/// What [`ClassifyBackend::classify`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    rows: &TensorSpec,
    _entry: &TensorSpec,
    _centers: &TensorSpec,
    _missing: &TensorSpec,
    _positions: &TensorSpec,
    _scores: &TensorSpec,
    _fillers: &usize,
    _differ: &bool,
) -> (TensorSpec, TensorSpec) {
    (rows.clone(), TensorSpec::new(rows.shape.clone(), DType::F32))
}

impl ClassifyBackend for CubeBackend {
    fn classify(
        rows: IntTensor<Self>,
        entry: IntTensor<Self>,
        centers: IntTensor<Self>,
        missing: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        fillers: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>) {
        launch([rows, entry, centers, missing, positions], scores, fillers, differ)
    }
}
