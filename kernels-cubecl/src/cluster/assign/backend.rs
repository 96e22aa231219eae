// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AssignClustersBackend: Backend {
    /// See [`super::assign_clusters`]: clusters and ranks. A head lacks `padding` clusters, has
    /// `merging` rows to be merged, and its clusters are counted from `first` on; or what `held`
    /// says where heads `differ`.
    #[fusion(meta = outputs)]
    fn assign_clusters(
        rows: IntTensor<Self>,
        kept_rows: IntTensor<Self>,
        merged: IntTensor<Self>,
        nearest: IntTensor<Self>,
        representatives: IntTensor<Self>,
        held: IntTensor<Self>,
        positions: IntTensor<Self>,
        similarity: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        padding: usize,
        merging: usize,
        first: usize,
        threshold: f32,
        merges: bool,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`AssignClustersBackend::assign_clusters`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    rows: &TensorSpec,
    _left: &TensorSpec,
    _merged: &TensorSpec,
    _nearest: &TensorSpec,
    _centers: &TensorSpec,
    _held: &TensorSpec,
    _positions: &TensorSpec,
    _similarity: &TensorSpec,
    _scores: &TensorSpec,
    _padding: &usize,
    _merging: &usize,
    _first: &usize,
    _threshold: &f32,
    _merges: &bool,
    _differ: &bool,
) -> (TensorSpec, TensorSpec) {
    (rows.clone(), TensorSpec::new(rows.shape.clone(), DType::F32))
}

impl AssignClustersBackend for CubeBackend {
    fn assign_clusters(
        rows: IntTensor<Self>,
        kept_rows: IntTensor<Self>,
        merged: IntTensor<Self>,
        nearest: IntTensor<Self>,
        representatives: IntTensor<Self>,
        held: IntTensor<Self>,
        positions: IntTensor<Self>,
        similarity: FloatTensor<Self>,
        scores: FloatTensor<Self>,
        padding: usize,
        merging: usize,
        first: usize,
        threshold: f32,
        merges: bool,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>) {
        let ints = [rows, kept_rows, merged, nearest, representatives, held, positions];
        let floats = [similarity, scores];
        launch(ints, floats, [padding, merging, first], threshold, [merges, differ])
    }
}
