use burn::tensor::DType;

use super::{
    ops::AttentionOps, pattern::HeadPattern, prefill::AttentionInput, sparse::SparseAttentionInput,
};
use crate::error::{OpError, Result};

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
    let Some(&first) = candidates.first() else {
        return Err(OpError::Value {
            operation: "closest patterns",
            what: "candidates",
            found: 0,
            expected: "at least 1".into(),
        });
    };
    let heads = input.queries.dims()[1];
    let dense = ops.attention(input.clone())?.output.cast(DType::F32);
    let mut best = vec![(f32::INFINITY, first); heads];
    for &pattern in candidates {
        let patterns = vec![pattern; heads];
        let sparse =
            ops.sparse_attention(SparseAttentionInput { attention: input.clone(), patterns })?;
        let difference = (sparse.output.cast(DType::F32) - dense.clone()).square();
        let of_heads = difference.sum_dim(3).sum_dim(2).sum_dim(0).reshape([heads]);
        let of_heads = of_heads.try_into_vec_as::<f32>();
        let of_heads = of_heads.map_err(|error| OpError::failed("closest patterns", error))?;
        for (best, distance) in best.iter_mut().zip(of_heads) {
            if distance < best.0 {
                *best = (distance, pattern);
            }
        }
    }
    Ok(best.into_iter().map(|(_, pattern)| pattern).collect())
}
