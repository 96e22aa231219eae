use burn::tensor::{DType, Device, Int, Tensor, activation::softmax};

use super::{
    AttentionInput, AttentionOutput, Visibility,
    product::{Precision, product},
};

/// Numbers of one block of weights: 4 Mi, so 16 MiB, however long the prompt.
const BLOCK_NUMBERS: usize = 1 << 22;

/// What is added to the score of an invisible entry: its weight underflows to an exact zero.
const INVISIBLE: f64 = -1e30;

/// Causal attention in blocks of queries: no more than [`BLOCK_NUMBERS`] weights exist at a time.
///
/// Grouped queries are folded into the rows of one product a kv head, so keys are never expanded. Everything
/// is computed in f32. A block reads only the columns its last query can see.
pub(super) fn attention(input: AttentionInput) -> AttentionOutput {
    let AttentionInput { queries, keys, values, visibility, scale, .. } = input;
    let [batch, heads, new, head_dim] = queries.dims();
    let [_, kv_heads, entries, _] = keys.dims();
    let group = heads / kv_heads;
    let dtype = queries.dtype();
    let precision = Precision::of(&[dtype, keys.dtype()], &queries.device());
    let old = entries - new;
    let keys = keys.cast(DType::F32).swap_dims(2, 3);
    let values = values.cast(DType::F32);
    let queries = queries.cast(DType::F32) * scale;

    let block = (BLOCK_NUMBERS / (batch * heads * entries)).clamp(16, 512).min(new);
    let mut outputs = Vec::with_capacity(new.div_ceil(block));
    let (mut sums, mut squares): (Option<Tensor<3>>, Option<Tensor<3>>) = (None, None);
    for start in (0..new).step_by(block) {
        let rows = block.min(new - start);
        // Where columns tell who sees what, nothing behind the block's last query matters.
        let columns = if visibility.by_position { entries } else { old + start + rows };
        let weights = block_weights(
            queries.clone().narrow(2, start, rows),
            keys.clone().narrow(3, 0, columns),
            &visibility,
            start..start + rows,
            old,
            precision,
        );
        let add = |total: &mut Option<Tensor<3>>, numbers: Tensor<4>| {
            let sum = numbers.sum_dim(2).reshape([batch, heads, columns]);
            *total = Some(match total.take() {
                None => widen(sum, entries),
                Some(total) => add_columns(total, sum),
            });
        };
        if input.column_sums {
            add(&mut sums, weights.clone());
        }
        if input.column_squares {
            add(&mut squares, weights.clone().square());
        }
        let weights = weights.reshape([batch, kv_heads, group * rows, columns]);
        let output = product(weights, values.clone().narrow(2, 0, columns), precision);
        outputs.push(output.reshape([batch, heads, rows, head_dim]));
    }
    let output = if outputs.len() == 1 { outputs.remove(0) } else { Tensor::cat(outputs, 2) };
    AttentionOutput { output: output.cast(dtype), column_sums: sums, column_squares: squares }
}

/// The weights of one block of queries, `[batch, query_heads, rows, columns]`.
///
/// `queries` are scaled, `[batch, query_heads, rows, head_dim]`; `keys` transposed,
/// `[batch, kv_heads, head_dim, columns]`. `range` says which of the queries of `visibility` they are, `old`
/// how many entries stand before the first of them.
pub(super) fn block_weights(
    queries: Tensor<4>,
    keys: Tensor<4>,
    visibility: &Visibility,
    range: std::ops::Range<usize>,
    old: usize,
    precision: Precision,
) -> Tensor<4> {
    let [batch, heads, rows, head_dim] = queries.dims();
    let [_, kv_heads, _, columns] = keys.dims();
    let group = heads / kv_heads;
    let queries = queries.reshape([batch, kv_heads, group * rows, head_dim]);
    let scores = product(queries, keys, precision).reshape([batch, heads, rows, columns]);
    if !visibility.by_position {
        if rows == 1 {
            // One query, and columns end with its own entry.
            return softmax(scores, 3);
        }
        let device = scores.device();
        let bias = causal_bias(rows, columns, old + range.start, &device);
        return softmax(scores + bias, 3);
    }
    let query_positions =
        visibility.queries.clone().narrow(2, range.start, rows).unsqueeze_dim::<4>(3);
    let entry_positions = visibility.entries.clone().narrow(2, 0, columns).unsqueeze_dim::<4>(2);
    let shape = [batch, kv_heads, rows, columns];
    let seen_by =
        entry_positions.clone().expand(shape).lower_equal(query_positions.clone().expand(shape));
    let written = entry_positions.greater_equal_scalar(0).expand(shape);
    let bias = (seen_by.bool_and(written).float().cast(DType::F32) - 1.0) * -INVISIBLE;
    let bias = bias
        .reshape([batch, kv_heads, 1, rows, columns])
        .expand([batch, kv_heads, group, rows, columns])
        .reshape([batch, heads, rows, columns]);
    // A query that is padding sees nothing, and its softmax is uniform: it must not be scored.
    let counted = query_positions.greater_equal_scalar(0).float().cast(DType::F32);
    softmax(scores + bias, 3) * counted
}

/// `[1, 1, rows, columns]`: zero where column ≤ row + `offset`, [`INVISIBLE`] elsewhere.
fn causal_bias(rows: usize, columns: usize, offset: usize, device: &Device) -> Tensor<4> {
    let row = Tensor::<1, Int>::arange(offset as i64..(offset + rows) as i64, device);
    let column = Tensor::<1, Int>::arange(0..columns as i64, device);
    let beyond = column
        .reshape([1, columns])
        .expand([rows, columns])
        .greater(row.reshape([rows, 1]).expand([rows, columns]));
    (beyond.float().cast(DType::F32) * INVISIBLE).reshape([1, 1, rows, columns])
}

/// Zeros behind the columns of `sum`.
fn widen(sum: Tensor<3>, entries: usize) -> Tensor<3> {
    let [batch, heads, columns] = sum.dims();
    if columns == entries {
        return sum;
    }
    let rest = Tensor::zeros([batch, heads, entries - columns], (&sum.device(), DType::F32));
    Tensor::cat(vec![sum, rest], 2)
}

/// Adds `sum` to the first columns of `sums`.
fn add_columns(sums: Tensor<3>, sum: Tensor<3>) -> Tensor<3> {
    let [batch, heads, columns] = sum.dims();
    if columns == sums.dims()[2] {
        return sums + sum;
    }
    let first = sums.clone().narrow(2, 0, columns) + sum;
    sums.slice_assign([0..batch, 0..heads, 0..columns], first)
}
