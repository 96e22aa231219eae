use cubecl::prelude::*;

use crate::common::line::write;

/// Adds up what the four lanes of a quad have of a column, and writes it, if there is that column.
#[cube]
pub(super) fn write_total(
    sums: &mut Tensor<f32>,
    batch: usize,
    head: usize,
    column: usize,
    own: f32,
) {
    let mut total = own;
    total += plane_shuffle_xor(total, 1);
    total += plane_shuffle_xor(total, 2);
    if UNIT_POS_PLANE.is_multiple_of(4) && column < sums.shape(2) {
        write::<f32>(sums, batch, head, column, total);
    }
}
