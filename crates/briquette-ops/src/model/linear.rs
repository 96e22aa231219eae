use burn::tensor::{Tensor, module};

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

/// Multiplies rows with weights: the reference of [`ModelOps::linear`](crate::ModelOps::linear).
pub(super) fn linear(input: LinearInput) -> Tensor<2> {
    module::linear(input.x, input.weight, input.bias)
}
