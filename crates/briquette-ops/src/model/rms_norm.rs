use burn::tensor::{DType, Tensor};

/// Rows to be normalised by their root mean square (Zhang and Sennrich, 2019,
/// [arXiv:1910.07467](https://arxiv.org/abs/1910.07467)), and a residual that is added before. All
/// tensors are of one type.
#[derive(Clone, Debug)]
pub struct RmsNormInput {
    /// One row per token, `[rows, channels]`.
    pub x: Tensor<2>,
    /// Residual that is added to the rows before they are normalised, `[rows, channels]`.
    pub residual: Option<Tensor<2>>,
    /// Weight of each channel, `[channels]`.
    pub weight: Tensor<1>,
    /// Number that is added to the mean square.
    pub epsilon: f64,
    /// Whether `weight` is stored less one, as in Gemma. Rows are then multiplied with it in f32,
    /// otherwise in the type of `x`.
    pub weight_less_one: bool,
}

/// Normalised rows.
#[derive(Clone, Debug)]
pub struct RmsNormOutput {
    /// Sum of `x` and the residual, `[rows, channels]`.
    pub sum: Tensor<2>,
    /// The normalised sum, `weight · sum / sqrt(mean(sum²) + epsilon)`, `[rows, channels]`.
    pub normal: Tensor<2>,
}

/// Adds the residual and normalises the sum: the reference of
/// [`ModelOps::rms_norm`](crate::ModelOps::rms_norm).
///
/// Everything but the product with the weight is computed in f32, as in `transformers`, and with
/// `weight_less_one` that product too; Burn's own `RmsNorm` rounds the root to the type of the
/// model first, which shifts f16 and bf16 results.
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
