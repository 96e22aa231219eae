use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{DType, Device, Tensor},
};

/// Root-mean-square normalisation (Zhang and Sennrich, 2019): `weight · x / sqrt(mean(x²) + epsilon)`.
///
/// Everything but the product with the weight is computed in f32, as `transformers` does; Burn's own
/// `RmsNorm` rounds the root to the type of the model first, which shifts f16 and bf16 results.
#[derive(Module, Debug)]
pub(crate) struct RmsNorm {
    weight: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    pub(crate) fn new(channels: usize, epsilon: f64, device: &Device) -> Self {
        Self { weight: Initializer::Ones.init([channels], device), epsilon }
    }

    /// `[.., channels]` -> `[.., channels]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype = x.dtype();
        let x = x.cast(DType::F32);
        let mean_square = x.clone().square().mean_dim(D - 1);
        let normal = x * (mean_square + self.epsilon).sqrt().recip();
        self.weight.val().unsqueeze() * normal.cast(dtype)
    }
}
