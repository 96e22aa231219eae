use burn::tensor::{DType, Device, Tensor};

use super::{
    scoring::Scoring,
    visibility::{Visibility, seen_entries},
};
use crate::{
    constant::counting,
    product::{Precision, product},
};

/// Bias of the score of an invisible entry: its weight underflows to an exact zero.
pub(super) const INVISIBLE: f64 = -1e30;

/// Computes the attention weights of one block of queries, `[batch, query_heads, rows, columns]`.
///
/// `queries` are scaled, `[batch, query_heads, rows, head_dim]`; `keys` are transposed,
/// `[batch, kv_heads, head_dim, columns]`. `range` is the range of the block among the queries of
/// `visibility`, which is by position if `scoring` reads positions, and `old` the number of entries
/// before those of the queries.
pub(super) fn block_weights(
    queries: Tensor<4>,
    keys: Tensor<4>,
    visibility: &Visibility,
    scoring: &Scoring,
    range: std::ops::Range<usize>,
    old: usize,
    precision: Precision,
) -> Tensor<4> {
    let [batch, heads, rows, head_dim] = queries.dims();
    let [_, kv_heads, _, columns] = keys.dims();
    let group = heads / kv_heads;
    let queries = queries.reshape([batch, kv_heads, group * rows, head_dim]);
    let scores = product(queries, keys, precision).reshape([batch, heads, rows, columns]);
    let scores = scoring.capped(scores);
    let Visibility::Positions { queries: of_queries, entries } = visibility else {
        if rows == 1 {
            // One query, and columns end with its own entry.
            return scoring.softmax(scores);
        }
        let device = scores.device();
        let bias = causal_bias(rows, columns, old + range.start, &device);
        return scoring.softmax(scores + bias);
    };
    let query_positions = of_queries.clone().narrow(2, range.start, rows);
    let entry_positions = entries.clone().narrow(2, 0, columns);
    let seen = seen_entries(&query_positions, &entry_positions, scoring.window);
    let seen = seen.float().cast(DType::F32);
    let query_positions = query_positions.unsqueeze_dim::<4>(3);
    let entry_positions = entry_positions.unsqueeze_dim::<4>(2);
    let of_heads = [batch, kv_heads, group, rows, columns];
    let grouped = |x: Tensor<4>| -> Tensor<4> {
        let x: Tensor<5> = x.reshape([batch, kv_heads, 1, rows, columns]);
        x.expand(of_heads).reshape([batch, heads, rows, columns])
    };
    let in_window = scoring.window.map(|_| grouped(seen.clone()));
    let mut bias = grouped((seen - 1.0) * -INVISIBLE);
    if let Some(slopes) = scoring.bias(&query_positions, &entry_positions) {
        bias = bias + slopes.reshape([batch, heads, rows, columns]);
    }
    // A query that is padding sees nothing, and its softmax is uniform: it must not be scored.
    let counted = query_positions.greater_equal_scalar(0).float().cast(DType::F32);
    let weights = scoring.softmax(scores + bias) * counted;
    // Nor must one with nothing in its window.
    match in_window {
        Some(seen) => weights * seen,
        None => weights,
    }
}

/// Returns zero where column ≤ row + `offset` and [`INVISIBLE`] elsewhere, `[1, 1, rows, columns]`.
fn causal_bias(rows: usize, columns: usize, offset: usize, device: &Device) -> Tensor<4> {
    let row = counting(offset..offset + rows, device);
    let column = counting(0..columns, device);
    let beyond = column
        .reshape([1, columns])
        .expand([rows, columns])
        .greater(row.reshape([rows, 1]).expand([rows, columns]));
    (beyond.float().cast(DType::F32) * INVISIBLE).reshape([1, 1, rows, columns])
}
