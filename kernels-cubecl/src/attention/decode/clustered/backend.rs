use burn::backend::{
    Backend, TensorMetadata, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;
#[cfg(feature = "fusion")]
use crate::attention::decode::split::{
    self, Heads,
    operands::{ClustersMetadata, RotaryMetadata, TailTensorsMetadata},
};
use crate::attention::decode::split::{
    RowLaunch,
    operands::{Clusters, Rotary, TailTensors},
};

/// Decode attention over clusters as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ClusteredAttentionBackend: Backend {
    /// See [`super::clustered`].
    #[fusion(meta = outputs)]
    fn clustered_attention(
        queries: FloatTensor<Self>,
        #[extension_type] clusters: Clusters<Self>,
        padding: IntTensor<Self>,
        #[extension_type] rotary: Rotary<Self>,
        #[extension_type] tail: TailTensors<Self>,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    clusters: &ClustersMetadata,
    _padding: &TensorSpec,
    _rotary: &RotaryMetadata,
    tail: &TailTensorsMetadata,
    _scale: &f32,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    let heads = Heads::of(&queries.shape, &tail.keys.shape);
    let columns = clusters.tokens_by_cluster.shape[2] + tail.entries;
    let shape = split::weight_shape(heads, columns, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

impl ClusteredAttentionBackend for CubeBackend {
    fn clustered_attention(
        queries: FloatTensor<Self>,
        clusters: Clusters<Self>,
        padding: IntTensor<Self>,
        rotary: Rotary<Self>,
        tail: TailTensors<Self>,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let columns = clusters.tokens_by_cluster.shape()[2] + tail.entries;
        let rows = RowLaunch {
            queries,
            clusters: None,
            starts: padding,
            rotary,
            tail,
            columns,
            scale,
            wanted: weights,
        };
        launch(rows, clusters)
    }
}
