use burn::tensor::{DType, Int, Tensor};

use crate::{
    constant::counting,
    product::{Precision, product},
};

/// Weighted rows, and the slots that each of them is added to.
#[derive(Clone, Debug)]
pub struct AccumulateInput {
    /// Rows, `[batch, kv_heads, rows, channels]`.
    pub x: Tensor<4>,
    /// Weight of each row, `[batch, kv_heads, rows]`, f32; zero drops it.
    pub weights: Tensor<3>,
    /// First slot that each row is added to, `[batch, kv_heads, rows]`.
    pub slot: Tensor<3, Int>,
    /// Number of slots that each row is added to, from its first on.
    pub span: usize,
    /// Number of slots of the result, `[batch, kv_heads, slots, channels]`, f32; rows are not added
    /// to slots behind them.
    pub slots: usize,
}

/// Elements of one block of the matrix that sends rows to slots.
const BLOCK_NUMBERS: usize = 1 << 22;

/// Multiplies the rows, in blocks of rows, with a matrix that has the weight of a row at each slot
/// the row is added to. Sums are in the same order every time, which a scatter with atomics would
/// not promise.
pub(super) fn accumulate(input: AccumulateInput) -> Tensor<4> {
    let AccumulateInput { x, weights, slot, span, slots } = input;
    let [batch, heads, rows, channels] = x.dims();
    let device = x.device();
    let precision = Precision::of(&[DType::F32], &device);
    let x = x.cast(DType::F32);
    let place = counting(0..slots, &device).reshape([1, 1, slots, 1]);
    let block = (BLOCK_NUMBERS / (batch * heads * slots)).clamp(16, 4096).min(rows.max(1));
    let mut total: Option<Tensor<4>> = None;
    for start in (0..rows).step_by(block) {
        let rows = block.min(rows - start);
        let shape = [batch, heads, slots, rows];
        let first = slot.clone().narrow(2, start, rows).unsqueeze_dim::<4>(2);
        let place = place.clone().expand(shape);
        let sent = match span {
            1 => place.equal(first.expand(shape)),
            _ => {
                let end = first.clone().add_scalar(span as i64);
                let from_first = place.clone().greater_equal(first.expand(shape));
                from_first.bool_and(place.lower(end.expand(shape)))
            }
        };
        let weights = weights.clone().narrow(2, start, rows).unsqueeze_dim::<4>(2).expand(shape);
        let matrix = weights.mask_fill(sent.bool_not(), 0.0);
        let sum = product(matrix, x.clone().narrow(2, start, rows), precision);
        total = Some(match total {
            None => sum,
            Some(total) => total + sum,
        });
    }
    total.unwrap_or_else(|| Tensor::zeros([batch, heads, slots, channels], (&device, DType::F32)))
}
