use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::PagesMetadata;
use super::{
    launch::{QuantizedProblem, launch},
    operands::Pages,
};
use crate::attention::decode::split::operands::TailTensors;
#[cfg(feature = "fusion")]
use crate::attention::decode::split::{self, Heads, operands::TailTensorsMetadata};

/// Decode attention over quantized pages as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizedAttentionBackend: Backend {
    /// See [`super::quantized`].
    #[fusion(meta = outputs)]
    fn quantized_attention(
        queries: FloatTensor<Self>,
        #[extension_type] pages: Pages<Self>,
        #[extension_type] tail: TailTensors<Self>,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    pages: &PagesMetadata,
    tail: &TailTensorsMetadata,
    _scale: &f32,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    let heads = Heads::of(&queries.shape, &tail.keys.shape);
    let shape = split::weight_shape(heads, pages.columns, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

impl QuantizedAttentionBackend for CubeBackend {
    fn quantized_attention(
        queries: FloatTensor<Self>,
        pages: Pages<Self>,
        tail: TailTensors<Self>,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch(QuantizedProblem { queries, pages, tail, scale, wanted: weights })
    }
}
