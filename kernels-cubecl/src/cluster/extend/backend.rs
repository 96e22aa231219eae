// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ExtendBackend: Backend {
    /// See [`super::extend`]: rows, norms and representatives. A head holds `tokens`, `clusters`
    /// and `unclustered`, or what `counts` says where heads `differ`.
    #[fusion(meta = outputs)]
    fn extend(
        cluster_of_token: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        counts: IntTensor<Self>,
        columns: usize,
        rows: usize,
        tokens: usize,
        clusters: usize,
        unclustered: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>);
}

/// Shapes and types of the outputs of [`ExtendBackend::extend`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    cluster_of_token: &TensorSpec,
    _norms: &TensorSpec,
    _centers: &TensorSpec,
    _counts: &TensorSpec,
    columns: &usize,
    rows: &usize,
    _tokens: &usize,
    _entries: &usize,
    _own: &usize,
    _differ: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let shape =
        |width: usize| Shape::from([cluster_of_token.shape[0], cluster_of_token.shape[1], width]);
    (
        TensorSpec::new(shape(*columns), cluster_of_token.dtype),
        TensorSpec::new(shape(*columns), DType::F32),
        TensorSpec::new(shape(*rows), cluster_of_token.dtype),
    )
}

impl ExtendBackend for CubeBackend {
    fn extend(
        cluster_of_token: IntTensor<Self>,
        norms: FloatTensor<Self>,
        representatives: IntTensor<Self>,
        counts: IntTensor<Self>,
        columns: usize,
        rows: usize,
        tokens: usize,
        clusters: usize,
        unclustered: usize,
        differ: bool,
    ) -> (IntTensor<Self>, FloatTensor<Self>, IntTensor<Self>) {
        launch(
            [cluster_of_token, representatives, counts],
            norms,
            [columns, rows],
            [tokens, clusters, unclustered],
            differ,
        )
    }
}
