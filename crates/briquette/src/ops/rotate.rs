use burn::tensor::{DType, Tensor};

use super::RotaryInput;

/// In f32, rounded once.
pub(super) fn rotate(x: Tensor<4>, rotary: RotaryInput) -> Tensor<4> {
    let RotaryInput { cosines, sines, positions } = rotary;
    let [batch, heads, tokens] = positions.dims();
    let half = cosines.dims()[1];
    // Padding stands at −1: any row of the table will do.
    let rows = positions.clamp_min(0).reshape([batch * heads * tokens]);
    let pick = |table: Tensor<2>| {
        table.cast(DType::F32).select(0, rows.clone()).reshape([batch, heads, tokens, half])
    };
    let (cos, sin) = (pick(cosines), pick(sines));
    let dtype = x.dtype();
    let x = x.cast(DType::F32);
    let low = x.clone().narrow(3, 0, half);
    let high = x.narrow(3, half, half);
    let rotated_low = low.clone() * cos.clone() - high.clone() * sin.clone();
    let rotated_high = high * cos + low * sin;
    Tensor::cat(vec![rotated_low, rotated_high], 3).cast(dtype)
}
