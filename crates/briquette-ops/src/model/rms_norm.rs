use burn::tensor::{DType, Tensor};

/// Rows to be normalised by their root mean square (Zhang and Sennrich, 2019,
/// [arXiv:1910.07467](https://arxiv.org/abs/1910.07467)), and what is added to them before. All of
/// one type.
#[derive(Clone, Debug)]
pub struct RmsNormInput {
    /// One row a token, `[rows, channels]`.
    pub x: Tensor<2>,
    /// Added to the rows before they are normalised, `[rows, channels]`.
    pub residual: Option<Tensor<2>>,
    /// Weight of each channel, `[channels]`.
    pub weight: Tensor<1>,
    /// Added to the mean square.
    pub epsilon: f64,
    /// Whether `weight` is stored less one, as Gemma does. It is then multiplied in f32, elsewhere
    /// in the type of `x`.
    pub weight_less_one: bool,
}

/// Normalised rows.
#[derive(Clone, Debug)]
pub struct RmsNormOutput {
    /// `x` and the residual, `[rows, channels]`.
    pub sum: Tensor<2>,
    /// The sum, normalised: `weight · sum / sqrt(mean(sum²) + epsilon)`, `[rows, channels]`.
    pub normal: Tensor<2>,
}

/// The sum and its normalisation by tensor operations: the reference of
/// [`ModelOps::rms_norm`](crate::ModelOps::rms_norm).
///
/// Everything but the product with the weight is computed in f32, as `transformers` does, in Gemma
/// that too; Burn's own `RmsNorm` rounds the root to the type of the model first, which shifts f16
/// and bf16 results.
pub fn rms_norm(input: RmsNormInput) -> RmsNormOutput {
    let RmsNormInput { x, residual, weight, epsilon, weight_less_one } = input;
    let sum = match residual {
        Some(residual) => x + residual,
        None => x,
    };
    let dtype = sum.dtype();
    let wide = sum.clone().cast(DType::F32);
    let mean_square = wide.clone().square().mean_dim(1);
    let normal = wide * (mean_square + epsilon).sqrt().recip();
    let normal = if weight_less_one {
        ((weight.cast(DType::F32) + 1.0).unsqueeze() * normal).cast(dtype)
    } else {
        weight.unsqueeze() * normal.cast(dtype)
    };
    RmsNormOutput { sum, normal }
}
