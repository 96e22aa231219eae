use std::sync::Arc;

use burn::{
    module::{Module, Param},
    nn,
    tensor::Tensor,
};

use briquette::ops::{LinearInput, Ops, best};

use crate::Result;

/// A linear layer in the place of Burn's [`nn::Linear`], which it is made from: parameters have the
/// same names and shapes, and what goes by the module's name, as the adapter of PyTorch's
/// checkpoints does, treats it alike.
///
/// Products with few rows, which a decode step has, go to a kernel that reads the weights at the
/// device's bandwidth, see [`ModelOps::linear`](briquette::ops::ModelOps::linear); with more rows,
/// or where there is no such kernel, they are Burn's own.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[inputs, outputs]`
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) ops: Arc<dyn Ops>,
}

impl From<nn::Linear> for Linear {
    fn from(nn::Linear { weight, bias }: nn::Linear) -> Self {
        Self { weight, bias, ops: best() }
    }
}

impl Linear {
    /// Sets the operations: those of a cache, so that one list tells of all
    /// [fallbacks](Ops::fallbacks).
    #[must_use]
    pub fn with_ops(self, ops: Arc<dyn Ops>) -> Self {
        Self { ops, ..self }
    }

    /// `[.., inputs]` -> `[.., outputs]`
    ///
    /// # Errors
    /// [`Error::Cache`](crate::Error::Cache) if shapes or types do not fit.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let mut dims = x.dims();
        let rows = dims[..D - 1].iter().product::<usize>();
        let channels = dims[D - 1];
        let weight = self.weight.val();
        dims[D - 1] = weight.dims()[1];
        let bias = self.bias.as_ref().map(|bias| bias.val());
        let input = LinearInput { x: x.reshape([rows, channels]), weight, bias };
        Ok(self.ops.linear(input).map_err(briquette::Error::from)?.reshape(dims))
    }
}
