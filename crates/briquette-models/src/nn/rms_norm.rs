use std::sync::Arc;

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use briquette::ops::Ops;
use briquette_ops::RmsNormInput;

use crate::Result;

/// Root-mean-square normalisation (Zhang and Sennrich, 2019):
/// `weight · x / sqrt(mean(x²) + epsilon)`. Gemma stores `weight - 1`.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
    epsilon: f64,
    weight_less_one: bool,
    #[module(skip)]
    ops: Arc<dyn Ops>,
}

impl RmsNorm {
    pub(crate) fn new(
        weight: Param<Tensor<1>>,
        epsilon: f64,
        weight_less_one: bool,
        ops: Arc<dyn Ops>,
    ) -> Self {
        Self { weight, epsilon, weight_less_one, ops }
    }

    pub(crate) fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// `[.., channels]` -> `[.., channels]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        Ok(self.add(x, None)?.1)
    }

    /// The sum of `x` and `added`, and the normalised sum, all `[.., channels]`.
    pub(crate) fn add<const D: usize>(
        &self,
        x: Tensor<D>,
        added: Option<Tensor<D>>,
    ) -> Result<(Tensor<D>, Tensor<D>)> {
        let dims = x.dims();
        let rows = dims[..D - 1].iter().product::<usize>();
        let input = RmsNormInput {
            x: x.reshape([rows, dims[D - 1]]),
            residual: added.map(|added| added.reshape([rows, dims[D - 1]])),
            weight: self.weight.val(),
            epsilon: self.epsilon,
            weight_less_one: self.weight_less_one,
        };
        let found = self.ops.rms_norm(input).map_err(briquette::Error::from)?;
        Ok((found.sum.reshape(dims), found.normal.reshape(dims)))
    }
}
