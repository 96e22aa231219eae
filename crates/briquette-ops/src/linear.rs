use std::fmt::Debug;

use burn::tensor::{Tensor, module};

use crate::error::Result;

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

/// Products with weights: what a model has besides its attention.
pub trait LinearOps: Debug + Send + Sync {
    /// The product of rows with a matrix of weights, `[rows, outputs]`.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn linear(&self, input: LinearInput) -> Result<Tensor<2>> {
        Ok(module::linear(input.x, input.weight, input.bias))
    }
}
