use burn::tensor::{Tensor, module};

/// Rows, and a matrix of weights that they are multiplied with. All of one type.
#[derive(Clone, Debug)]
pub struct LinearInput {
    /// One row a token, `[rows, inputs]`.
    pub x: Tensor<2>,
    /// `[inputs, outputs]`, as Burn's `Linear` holds it.
    pub weight: Tensor<2>,
    /// Added to every row, `[outputs]`.
    pub bias: Option<Tensor<1>>,
}

/// The product by tensor operations: the reference of
/// [`ModelOps::linear`](crate::ModelOps::linear).
pub(super) fn linear(input: LinearInput) -> Tensor<2> {
    module::linear(input.x, input.weight, input.bias)
}
