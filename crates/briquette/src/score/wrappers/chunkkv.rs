//! ChunkKV: Liu et al., 2025, *ChunkKV: Semantic-Preserving KV Cache Compression for Efficient
//! Long-Context LLM Inference* ([arXiv 2502.00299](https://arxiv.org/abs/2502.00299)).
//!
//! ```text
//! s[j] = mean of the scores inside over the chunk of 20 tokens that j is in, and over the kv heads
//! ```
//!
//! Protected: the last 32 tokens, the window of the SnapKV inside. They stay out of the mean.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::iota,
    score::{
        Scorer,
        support::{FromFirst, per_head},
    },
};

/// Mean of the scores of another scorer over chunks of neighbours and over heads, so that whole
/// chunks are kept and every head keeps the same: ChunkKV (Liu et al., 2025, [arXiv
/// 2502.00299](https://arxiv.org/abs/2502.00299)).
///
/// Protected entries do not count. If the budget ends within a chunk, its older tokens stay. Where
/// heads already hold different tokens, each has chunks of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChunkKv {
    /// Number of tokens of a chunk.
    pub length: usize,
    /// Wrapped scorer.
    pub of: Arc<dyn Scorer>,
}

impl ChunkKv {
    /// Wraps `scorer` with chunks of `length` tokens.
    pub fn of(length: usize, scorer: impl Scorer) -> Self {
        Self { length, of: Arc::new(scorer) }
    }
}

impl Scorer for ChunkKv {
    fn name(&self) -> &str {
        "chunkkv"
    }

    fn summary(&self) -> String {
        format!("{} of {}, {}", self.name(), self.length, self.of.summary())
    }

    fn inner(&self) -> Option<&dyn Scorer> {
        Some(self.of.as_ref())
    }

    fn check(&self) -> Result<()> {
        check::window("score.length", self.length)?;
        self.of.check()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let scores = self.of.score(view)?.cast(DType::F32);
        let [batch, heads, columns] = scores.dims();
        let entries = FromFirst::of(view);
        let width = columns.next_multiple_of(self.length);
        let chunks = [batch, heads, width / self.length, self.length];
        let recent = |head: usize| view.protect.recent_tokens(view.budget[head / heads]);
        let ends =
            view.lengths.iter().enumerate().map(|(head, held)| held.saturating_sub(recent(head)));
        let dims = [batch, heads, width];
        let number = iota(dims, &scores.device());
        let there = number.clone().lower(per_head(dims, ends, view).expand(dims));
        let there = there.bool_and(number.greater_equal_scalar(view.protect.sinks as i64));
        let from_first = entries.rows(scores.unsqueeze_dim::<4>(3), 0, width);
        let from_first = from_first.squeeze_dim::<3>(3).mask_fill(there.clone().bool_not(), 0.0);
        let number = there.float().cast(DType::F32).reshape(chunks).sum_dim(3).clamp_min(1.0);
        let means = from_first.reshape(chunks).sum_dim(3) / number;
        let means = if view.heads_differ {
            means
        } else {
            means.mean_dim(1).expand([batch, heads, chunks[2], 1])
        };
        Ok(entries.at_columns(means.expand(chunks).reshape([batch, heads, width]), 0))
    }
}
