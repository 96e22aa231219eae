use burn::tensor::{DType, Int, Tensor};

use crate::{error::Result, merge::AccumulateInput};

/// Tokens, their rows and their scores.
#[derive(Clone, Debug)]
pub struct RowWeightsInput {
    /// The row of each token, `[batch, kv_heads, columns]`.
    pub rows: Tensor<3, Int>,
    /// Position of each token, −1 at padding, `[batch, kv_heads, columns]`.
    pub positions: Tensor<3, Int>,
    /// Scores of the tokens, f32, `[batch, kv_heads, columns]`.
    pub scores: Tensor<3>,
    /// Number of rows.
    pub height: usize,
    /// Lower and upper bound that scores are clamped to.
    pub bounds: (f32, f32),
}

/// The reference of [`ClusterOps::row_weights`](crate::ClusterOps::row_weights) over any sums into
/// slots: each column is a row of one channel that is added to its slot.
///
/// # Errors
/// As `accumulate`.
pub fn row_weights(
    input: RowWeightsInput,
    accumulate: impl FnOnce(AccumulateInput) -> Result<Tensor<4>>,
) -> Result<Tensor<3>> {
    let RowWeightsInput { rows, positions, scores, height, bounds } = input;
    let [batch, heads, _] = rows.dims();
    let scores = scores.clamp(bounds.0, bounds.1).mask_fill(positions.lower_scalar(0), 0.0);
    let sums = accumulate(AccumulateInput {
        weights: Tensor::ones(scores.dims(), (&scores.device(), DType::F32)),
        x: scores.unsqueeze_dim::<4>(3),
        slot: rows,
        span: 1,
        slots: height,
    })?;
    Ok(sums.reshape([batch, heads, height]))
}
