use burn::tensor::{DType, Int, Tensor};

/// Tables of a rotary position encoding (RoPE): channel `i` is paired with channel
/// `i + head_dim / 2`, and the pair is rotated by the angle whose cosine and sine are in row
/// `position` and column `i` of the tables. Tables are f32, except for keys of 16 bits that a
/// kernel encodes as it reads them.
#[derive(Clone, Debug)]
pub struct RotaryTables {
    /// The cosine of each position and pair, `[positions, head_dim / 2]`.
    pub cosines: Tensor<2>,
    /// The sine of each position and pair, `[positions, head_dim / 2]`.
    pub sines: Tensor<2>,
    /// Position of each column, `[batch, heads or 1, columns]`; any number at padding.
    pub positions: Tensor<3, Int>,
}

/// Rotates rows, `[batch, heads, tokens, head_dim]`, by their positions, in f32 and rounded once:
/// the reference of [`AttentionOps::rotate`](crate::AttentionOps::rotate).
pub fn rotate(x: Tensor<4>, rotary: RotaryTables) -> Tensor<4> {
    let RotaryTables { cosines, sines, positions } = rotary;
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
