use burn::backend::{Backend, backend_extension, tensor::IntTensor};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SortByClusterBackend: Backend {
    /// See [`super::sort_by_cluster`]: order, tokens by cluster, and the number of
    /// columns in no cluster.
    #[fusion(meta = outputs)]
    fn sort_by_cluster(
        clusters: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

/// Shapes and types of the outputs of [`SortByClusterBackend::sort_by_cluster`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(clusters: &TensorSpec, _number: &usize) -> (TensorSpec, TensorSpec, TensorSpec) {
    let padding_columns = Shape::from([clusters.shape[0], clusters.shape[1]]);
    (clusters.clone(), clusters.clone(), TensorSpec::new(padding_columns, clusters.dtype))
}

impl SortByClusterBackend for CubeBackend {
    fn sort_by_cluster(
        clusters: IntTensor<Self>,
        number: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        launch(clusters, number)
    }
}
