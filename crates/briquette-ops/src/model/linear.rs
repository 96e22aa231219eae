use burn::tensor::{Tensor, module};

use crate::error::{OpError, Result};

/// Rows, and a matrix of weights that they are multiplied with. All tensors are of one type.
#[derive(Clone, Debug)]
pub struct LinearInput {
    /// One row per token, `[rows, inputs]`.
    pub x: Tensor<2>,
    /// Matrix of weights, `[inputs, outputs]`, as in Burn's `Linear`. In memory it may be the
    /// transpose of a matrix `[outputs, inputs]` (K-major), see
    /// [`ModelOps::prefers_k_major`](crate::ModelOps::prefers_k_major).
    pub weight: Tensor<2>,
    /// Bias that is added to every row of the product, `[outputs]`.
    pub bias: Option<Tensor<1>>,
}

impl LinearInput {
    /// Refuses tensors that do not fit each other.
    ///
    /// # Errors
    /// [`OpError::Shape`].
    fn check(&self) -> Result<()> {
        let outputs = self.weight.dims()[1];
        let expected = [self.x.dims()[1], outputs];
        OpError::check_shape("linear", "weight", self.weight.dims(), expected)?;
        let Some(bias) = &self.bias else { return Ok(()) };
        OpError::check_shape("linear", "bias", bias.dims(), [outputs])
    }
}

/// Multiplies rows with weights: the reference of [`ModelOps::linear`](crate::ModelOps::linear).
pub(super) fn linear(input: LinearInput) -> Result<Tensor<2>> {
    input.check()?;
    Ok(module::linear(input.x, input.weight, input.bias))
}
