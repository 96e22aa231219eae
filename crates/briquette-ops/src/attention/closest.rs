use burn::tensor::DType;

use super::{
    ops::AttentionOps,
    pattern::{HeadPattern, POOLED_BLOCK},
    prefill::AttentionInput,
    sparse::SparseAttentionInput,
};
use crate::{
    error::{OpError, Result},
    host::HostInput,
};

const NAME: &str = "closest patterns";

/// Prompts for which the numbers of MInference's candidates are meant, in tokens.
const FULL_LENGTH: usize = 32_768;

/// Returns the candidates of [MInference's code](https://github.com/microsoft/MInference) for a
/// prompt of so many tokens: an A-shape, four kinds of lines, and an eighth of the blocks. Their
/// numbers are for 32 768 tokens and more; for fewer they are in proportion, so that all cost
/// alike.
pub fn minference_candidates(tokens: usize) -> [HeadPattern; 6] {
    let of = |number: usize| (number * tokens.min(FULL_LENGTH) / FULL_LENGTH).max(1);
    let lines =
        |vertical, slash| HeadPattern::VerticalSlash { vertical: of(vertical), slash: of(slash) };
    [
        HeadPattern::AShape { first: of(100), recent: of(800) },
        lines(30, 800),
        lines(100, 750),
        lines(500, 700),
        lines(3500, 100),
        HeadPattern::Blocks { blocks: (tokens / (8 * POOLED_BLOCK)).max(1) },
    ]
}

/// Returns the pattern of each query head whose output is closest to that of dense attention, among
/// candidates of equal cost: MInference's search (Algorithm 1), which is made once, on one sample.
///
/// Distances are Euclidean, over all tokens and batch rows; of equal distances the first candidate
/// wins.
///
/// # Errors
/// [`OpError::Value`] if there are no candidates, [`OpError::Execution`] if the device failed, and
/// the errors of [`AttentionOps::attention`] and [`AttentionOps::sparse_attention`].
pub fn closest_patterns(
    ops: &dyn AttentionOps,
    input: AttentionInput,
    candidates: &[HeadPattern],
) -> Result<Vec<HeadPattern>> {
    let found = candidates.len();
    OpError::check_value(NAME, "candidates", found, found > 0, "at least 1")?;
    let heads = input.queries.dims()[1];
    let dense = ops.attention(input.clone())?.output.cast(DType::F32);
    let mut best = vec![(f32::INFINITY, candidates[0]); heads];
    for &pattern in candidates {
        let patterns = vec![pattern; heads];
        let sparse =
            ops.sparse_attention(SparseAttentionInput { attention: input.clone(), patterns })?;
        let difference = (sparse.output.cast(DType::F32) - dense.clone()).square();
        let of_heads = difference.sum_dim(3).sum_dim(2).sum_dim(0).reshape([heads]);
        for (best, distance) in best.iter_mut().zip(HostInput(NAME).floats(&of_heads)?) {
            if distance < best.0 {
                *best = (distance, pattern);
            }
        }
    }
    Ok(best.into_iter().map(|(_, pattern)| pattern).collect())
}
