//! Non-causal attention, the second half of Compactor: Chari and Van Durme, 2025, *Compactor:
//! Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores* ([arXiv
//! 2507.08143](https://arxiv.org/abs/2507.08143)).
//!
//! ```text
//! c[j] = Σ over the queries i of its chunk of softmax(q[i] · k)[j], the mean of a group
//! s    = c[j] · ‖v[j]‖, mean-pooled over 3 tokens
//! ```
//!
//! Protected: the first 8 tokens and the last 4.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{Statistic, norm},
    score::{AttentionRequest, Pool, Scorer},
};

/// Attention that a token receives from all queries of its own chunk, later ones and earlier ones,
/// times the length of its value, pooled along the tokens: the non-causal attention of Compactor
/// (Chari and Van Durme, 2025, [arXiv 2507.08143](https://arxiv.org/abs/2507.08143)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NonCausal {
    /// Number of tokens of a chunk.
    pub chunk: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
}

impl Scorer for NonCausal {
    fn name(&self) -> &str {
        "non-causal"
    }

    fn summary(&self) -> String {
        format!("{} {}{}", self.name(), self.chunk, Pool::summary(self.pool))
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::chunk(self.chunk)
    }

    fn check(&self) -> Result<()> {
        check::window("score.chunk", self.chunk)?;
        check::pool(self.pool)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let received = view.group_mean(view.statistic(Statistic::Chunk, self.name())?);
        let scores = received * norm(view.values()?).squeeze_dim::<3>(3);
        Ok(self.pool.map_or(scores.clone(), |pool| pool.apply(scores)))
    }
}
