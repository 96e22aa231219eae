//! FINCH: Corallo and Papotti, 2024, *FINCH: Prompt-guided Key-Value Cache Compression for Large
//! Language Models* ([arXiv 2408.00167](https://arxiv.org/abs/2408.00167)).
//!
//! ```text
//! s[j] = mean over the last w queries i of n_i · A[i, j]      with n_i tokens before query i
//! ```
//!
//! Protected: the last w tokens, which are the question.

use std::sync::Arc;

use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Scorer},
};

/// Attention weight that a token receives from the last `window` queries, those of the question,
/// each weight times the number of tokens before its query: FINCH (Corallo and Papotti, 2024,
/// [arXiv 2408.00167](https://arxiv.org/abs/2408.00167)).
///
/// A query that sees more tokens gives each of them less; the factor makes up for it. Nothing is
/// pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finch {
    /// Number of tokens of the question.
    pub window: usize,
}

impl Scorer for Finch {
    fn name(&self) -> &str {
        "finch"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.window)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { window }))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let (weights, own) = view.last_queries(self.window, self.name())?;
        let [batch, query_heads, queries, _] = weights.dims();
        let group = query_heads / view.shape.kv_heads;
        let mut factors = vec![0.0_f32; batch * query_heads * queries];
        for (index, factors) in factors.chunks_mut(queries).enumerate() {
            let own = own[index / query_heads];
            // The queries' own tokens are the last that are held.
            let before = view.lengths[index / group].saturating_sub(own);
            for (query, factor) in factors.iter_mut().rev().take(own).rev().enumerate() {
                *factor = (before + query) as f32 / own as f32;
            }
        }
        let data = TensorData::new(factors, [batch, query_heads, queries, 1]);
        let factors = Tensor::<4>::from_data(data, (&weights.device(), DType::F32));
        Ok(view.group_mean((weights * factors).sum_dim(2).squeeze_dim(2)))
    }
}
