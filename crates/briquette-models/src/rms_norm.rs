use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{Device, Tensor},
};

use briquette::ops::{RmsNormInput, best, rms_norm};

use crate::{Architecture, ModelConfig};

/// Root-mean-square normalisation (Zhang and Sennrich, 2019): `weight · x / sqrt(mean(x²) + epsilon)`. Gemma stores
/// `weight - 1`.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
    epsilon: f64,
    weight_less_one: bool,
}

impl RmsNorm {
    pub(crate) fn new(channels: usize, config: &ModelConfig, device: &Device) -> Self {
        let gemma = matches!(config.architecture, Architecture::Gemma2 | Architecture::Gemma3);
        let start = if gemma { Initializer::Zeros } else { Initializer::Ones };
        Self {
            weight: start.init([channels], device),
            epsilon: config.rms_norm_eps,
            weight_less_one: gemma,
        }
    }

    /// `[.., channels]` -> `[.., channels]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.add(x, None).1
    }

    /// The sum of `x` and what is added to it, and the sum normalised, all `[.., channels]`.
    pub(crate) fn add<const D: usize>(
        &self,
        x: Tensor<D>,
        added: Option<Tensor<D>>,
    ) -> (Tensor<D>, Tensor<D>) {
        let dims = x.dims();
        let rows = dims[..D - 1].iter().product::<usize>();
        let input = RmsNormInput {
            x: x.reshape([rows, dims[D - 1]]),
            residual: added.map(|added| added.reshape([rows, dims[D - 1]])),
            weight: self.weight.val(),
            epsilon: self.epsilon,
            weight_less_one: self.weight_less_one,
        };
        // What the operation refuses, tensor operations refuse in their own way.
        let found = best().rms_norm(input.clone()).unwrap_or_else(|_| rms_norm(input));
        (found.sum.reshape(dims), found.normal.reshape(dims))
    }
}
