use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{DType, Device, Tensor},
};

use crate::{Architecture, ModelConfig};

/// Root-mean-square normalisation (Zhang and Sennrich, 2019): `weight · x / sqrt(mean(x²) + epsilon)`. Gemma stores
/// `weight - 1`.
///
/// Everything but the product with the weight is computed in f32, as `transformers` does, in Gemma that too; Burn's own
/// `RmsNorm` rounds the root to the type of the model first, which shifts f16 and bf16 results.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
    epsilon: f64,
    stored_from_one: bool,
}

impl RmsNorm {
    pub(crate) fn new(channels: usize, config: &ModelConfig, device: &Device) -> Self {
        let gemma = matches!(config.architecture, Architecture::Gemma2 | Architecture::Gemma3);
        let start = if gemma { Initializer::Zeros } else { Initializer::Ones };
        Self {
            weight: start.init([channels], device),
            epsilon: config.rms_norm_eps,
            stored_from_one: gemma,
        }
    }

    /// `[.., channels]` -> `[.., channels]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype = x.dtype();
        let x = x.cast(DType::F32);
        let mean_square = x.clone().square().mean_dim(D - 1);
        let normal = x * (mean_square + self.epsilon).sqrt().recip();
        if self.stored_from_one {
            let weight = self.weight.val().cast(DType::F32) + 1.0;
            return (weight.unsqueeze() * normal).cast(dtype);
        }
        self.weight.val().unsqueeze() * normal.cast(dtype)
    }
}
