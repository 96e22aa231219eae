#[cfg(feature = "flex")]
use burn::tensor::DType;
use burn::tensor::Tensor;

use super::matrix::QuantizedMatrix;
use crate::error::{OpError, Result};

/// Rows, and a matrix of quantized weights that they are multiplied with.
#[derive(Clone, Debug)]
pub struct QuantizedLinearInput {
    /// One row per token, `[rows, inputs]`.
    pub x: Tensor<2>,
    /// Weights, `[outputs, inputs]`.
    pub weight: QuantizedMatrix,
    /// Bias that is added to every row of the product, `[outputs]`, of the type of `x`.
    pub bias: Option<Tensor<1>>,
}

const NAME: &str = "quantized_linear";

impl QuantizedLinearInput {
    /// Compares the shapes and types.
    ///
    /// # Errors
    /// [`OpError::Shape`], and [`OpError::DataType`] for a bias of another type.
    pub fn check(&self) -> Result<()> {
        let ([rows, _], [outputs, inputs]) = (self.x.dims(), self.weight.dims());
        OpError::check_shape(NAME, "x", self.x.dims(), [rows, inputs])?;
        let Some(bias) = &self.bias else { return Ok(()) };
        OpError::check_shape(NAME, "bias", bias.dims(), [outputs])?;
        let (found, expected) = (bias.dtype(), self.x.dtype());
        if found != expected {
            let (operation, tensor) = (NAME, "bias");
            return Err(OpError::DataType { operation, tensor, found, expected });
        }
        Ok(())
    }
}

/// Multiplies rows with quantized weights: the reference of
/// [`ModelOps::quantized_linear`](crate::ModelOps::quantized_linear). The host reads them as they
/// lie; elsewhere they are expanded to the type of `x`.
pub(crate) fn quantized_linear(input: QuantizedLinearInput) -> Result<Tensor<2>> {
    input.check()?;
    let QuantizedLinearInput { x, weight, bias } = input;
    let dtype = x.dtype();
    #[cfg(feature = "flex")]
    if crate::host::is_host(&x.device()) {
        // Rounded once.
        let product = super::host::product(x, &weight)?;
        let bias = bias.map(|bias| bias.cast(DType::F32));
        return Ok(plus(product, bias).cast(dtype));
    }
    Ok(plus(x.matmul(weight.dequantize().cast(dtype).transpose()), bias))
}

fn plus(product: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    match bias {
        Some(bias) => product + bias.unsqueeze(),
        None => product,
    }
}
