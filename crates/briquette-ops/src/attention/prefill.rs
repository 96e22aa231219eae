use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::{scoring::Scoring, visibility::Visibility, weights::block_weights};
use crate::product::{Precision, product};

/// New queries, and the entries of a layer that they attend to. The queries belong to the last
/// `new` of the entries.
#[derive(Clone, Debug)]
pub struct AttentionInput {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// Values, `[batch, kv_heads, entries, value_dim]`.
    pub values: Tensor<4>,
    /// Visibility of entries to queries.
    pub visibility: Visibility,
    /// How query-key products become weights.
    pub scoring: Scoring,
    /// Whether to return [`AttentionOutput::column_sums`].
    pub column_sums: bool,
    /// Whether to return [`AttentionOutput::column_squares`].
    pub column_squares: bool,
}

/// Output of attention, and the weights that each entry received.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// Attention output, `[batch, query_heads, new, value_dim]`, of the type of the queries; zero
    /// where the query is padding.
    pub output: Tensor<4>,
    /// Sum over the queries of the weights of each entry, `[batch, query_heads, entries]`, f32.
    pub column_sums: Option<Tensor<3>>,
    /// Sum over the queries of the squared weights of each entry, `[batch, query_heads, entries]`,
    /// f32.
    pub column_squares: Option<Tensor<3>>,
}

/// Elements of one block of weights: 4 Mi, so 16 MiB, however long the prompt.
const BLOCK_NUMBERS: usize = 1 << 22;

/// Computes causal attention in blocks of queries: about [`BLOCK_NUMBERS`] weights exist at a time,
/// but those of 16 queries at least.
///
/// Grouped queries are folded into the rows of one product per kv head, so keys are never expanded.
/// Everything is computed in f32. Without positions, a block reads only the columns that its last
/// query sees.
pub(super) fn attention(mut input: AttentionInput) -> AttentionOutput {
    if input.scoring.reads_positions() {
        input.visibility = input.visibility.by_position(&input.queries, &input.keys);
    }
    let (visibility, scoring) = (input.visibility.clone(), input.scoring.clone());
    let old = behind(&input);
    attention_by(input, |queries, keys, rows, precision| {
        block_weights(queries, keys, &visibility, &scoring, rows, old, precision)
    })
}

/// Computes attention with the weights that `weights` returns for each block of queries,
/// `[batch, query_heads, rows, columns]`, from scaled queries,
/// `[batch, query_heads, rows, head_dim]`, and transposed keys,
/// `[batch, kv_heads, head_dim, columns]`.
pub(super) fn attention_by(
    input: AttentionInput,
    mut weights: impl FnMut(Tensor<4>, Tensor<4>, Range<usize>, Precision) -> Tensor<4>,
) -> AttentionOutput {
    let old = behind(&input);
    let AttentionInput { queries, keys, values, visibility, scoring, .. } = input;
    let [batch, heads, new, _] = queries.dims();
    let [_, kv_heads, entries, value_dim] = values.dims();
    let group = heads / kv_heads;
    let dtype = queries.dtype();
    let precision = Precision::of(&[dtype, keys.dtype()], &queries.device());
    let keys = keys.cast(DType::F32).swap_dims(2, 3);
    let values = values.cast(DType::F32);
    let queries = queries.cast(DType::F32) * scoring.scale;

    let block = (BLOCK_NUMBERS / (batch * heads * entries)).clamp(16, 512).min(new);
    let mut outputs = Vec::with_capacity(new.div_ceil(block));
    let (mut sums, mut squares): (Option<Tensor<3>>, Option<Tensor<3>>) = (None, None);
    for start in (0..new).step_by(block) {
        let rows = block.min(new - start);
        // Where columns tell who sees what, nothing behind the block's last query matters.
        let columns = match visibility {
            Visibility::Positions { .. } => entries,
            Visibility::Causal => old + start + rows,
        };
        let weights = weights(
            queries.clone().narrow(2, start, rows),
            keys.clone().narrow(3, 0, columns),
            start..start + rows,
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
        outputs.push(output.reshape([batch, heads, rows, value_dim]));
    }
    let output = if outputs.len() == 1 { outputs.remove(0) } else { Tensor::cat(outputs, 2) };
    AttentionOutput { output: output.cast(dtype), column_sums: sums, column_squares: squares }
}

/// Number of entries before those of the queries. Where padding has been dropped, there may be
/// fewer entries than queries; positions then say which entries a query sees.
fn behind(input: &AttentionInput) -> usize {
    input.keys.dims()[2].saturating_sub(input.queries.dims()[2])
}

/// Appends zeros to the columns of `sum`, up to `entries` columns.
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
