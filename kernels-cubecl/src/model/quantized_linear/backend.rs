use briquette_ops::WeightFormat;
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn::{
    backend::{Backend, backend_extension, tensor::FloatTensor},
    tensor::DType,
};
use burn_cubecl::CubeBackend;

use super::{
    super::linear::operands::Added,
    launch::{launch_expand, launch_product},
    operands::Weights,
};
#[cfg(feature = "fusion")]
use super::{super::linear::operands::AddedMetadata, operands::WeightsMetadata};

/// The kernels as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizedLinearBackend: Backend {
    /// See [`super::quantized_linear`].
    #[fusion(meta = product)]
    fn quantized_linear(
        x: FloatTensor<Self>,
        #[extension_type] weights: Weights<Self>,
        #[extension_type] added: Added<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self>;

    /// See [`super::dequantize`].
    #[fusion(meta = expanded)]
    fn expand_weights(
        #[extension_type] weights: Weights<Self>,
        format: WeightFormat,
        inputs: usize,
        dtype: DType,
    ) -> FloatTensor<Self>;
}

/// Shape of the product, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn product(
    x: &TensorSpec,
    weights: &WeightsMetadata,
    _added: &AddedMetadata,
    _format: &WeightFormat,
) -> TensorSpec {
    TensorSpec::new(Shape::from([x.shape[0], weights.words.shape[0]]), x.dtype)
}

/// Shape of the expanded weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn expanded(
    weights: &WeightsMetadata,
    _format: &WeightFormat,
    inputs: &usize,
    dtype: &DType,
) -> TensorSpec {
    TensorSpec::new(Shape::from([*inputs, weights.words.shape[0]]), *dtype)
}

impl QuantizedLinearBackend for CubeBackend {
    fn quantized_linear(
        x: FloatTensor<Self>,
        weights: Weights<Self>,
        added: Added<Self>,
        format: WeightFormat,
    ) -> FloatTensor<Self> {
        launch_product(x, weights, added, format)
    }

    fn expand_weights(
        weights: Weights<Self>,
        format: WeightFormat,
        inputs: usize,
        dtype: DType,
    ) -> FloatTensor<Self> {
        launch_expand(weights, format, inputs, dtype)
    }
}
