use burn::tensor::{DType, Tensor};

use super::{AccumulateInput, WeightsInput};

/// Each column is a row of one channel that is added to its slot.
pub(super) fn row_weights(
    input: WeightsInput,
    accumulate: impl FnOnce(AccumulateInput) -> Tensor<4>,
) -> Tensor<3> {
    let WeightsInput { rows, positions, scores, height, bounds } = input;
    let [batch, heads, _] = rows.dims();
    let scores = scores.clamp(bounds.0, bounds.1).mask_fill(positions.lower_scalar(0), 0.0);
    let sums = accumulate(AccumulateInput {
        weights: Tensor::ones(scores.dims(), (&scores.device(), DType::F32)),
        x: scores.unsqueeze_dim::<4>(3),
        slot: rows,
        span: 1,
        slots: height,
    });
    sums.reshape([batch, heads, height])
}
