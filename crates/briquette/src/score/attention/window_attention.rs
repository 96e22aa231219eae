//! SnapKV: Li et al., 2024, *SnapKV: LLM Knows What You are Looking for Before Generation* ([arXiv
//! 2404.14469](https://arxiv.org/abs/2404.14469)); TOVA: Oren et al., 2024, *Transformers are
//! Multi-State RNNs* ([arXiv 2401.06104](https://arxiv.org/abs/2401.06104)); CompressKV: Lin et
//! al., 2025, *CompressKV: Semantic Retrieval Heads Know What Tokens are Not Important Before
//! Generation* ([arXiv 2508.02401](https://arxiv.org/abs/2508.02401)).
//!
//! ```text
//! u[j] = mean over the last w queries i of A[i, j],   0 for the last w tokens
//! p[j] = mean of u[j − r] … u[j + r],   zeros beyond the ends
//! s[j] = mean of p[j] over the query heads of a group, of the layer, or over those that retrieve
//! ```
//!
//! Protected: the last w tokens; with TOVA w is 1.

use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::outside_window,
    score::{AttentionRequest, Dependencies, Moments, Pool, RetrievalHeads, Scorer},
};

/// Attention weight that a token receives from the last `window` queries, pooled along the tokens.
///
/// SnapKV (Li et al., 2024, section 4) with a window of 32 and one set of tokens per kv head; TOVA
/// (Oren et al., 2024) with a window of one query and one set per layer; CompressKV with a window
/// of 8 and the retrieval heads of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowAttention {
    /// Number of queries observed. Their own tokens stay out of the pooling.
    pub window: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Query heads over which the mean is taken.
    #[serde(default)]
    pub heads: HeadMean,
}

/// Query heads over which the mean of a score is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HeadMean {
    /// Query heads that share a kv head.
    #[default]
    Group,
    /// All query heads of the layer.
    Layer,
    /// Retrieval heads of the layer, by the model's profile.
    Retrieval(RetrievalHeads),
}

impl Scorer for WindowAttention {
    fn name(&self) -> &str {
        "window-attention"
    }

    fn summary(&self) -> String {
        let heads = match self.heads {
            HeadMean::Group => String::new(),
            HeadMean::Layer => ", one set a layer".to_owned(),
            HeadMean::Retrieval(heads) => format!(", {}", heads.summary()),
        };
        format!("{} {}{}{heads}", self.name(), self.window, Pool::summary(self.pool))
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)?;
        if let HeadMean::Retrieval(heads) = &self.heads {
            heads.check()?;
        }
        check::pool(self.pool)
    }

    fn reads_profile(&self) -> bool {
        matches!(self.heads, HeadMean::Retrieval(_))
    }

    /// Only pooling looks at neighbours. Heads that share their scores evict the same tokens, so
    /// that they hold the same tokens in the same slots.
    fn depends_on(&self) -> Dependencies {
        let order = self.pool.is_some() || matches!(self.heads, HeadMean::Retrieval(_));
        Dependencies { order, rows: true, ..Dependencies::none() }
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { window, ..*self }))
    }

    fn with_pool(&self, pool: Pool) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { pool: Some(pool), ..*self }))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let scores = view.moments(self.window, Moments::default(), self.name())?.own_mean();
        let scores = match self.pool {
            None => scores,
            Some(pool) => pool.apply(outside_window(scores, self.window)),
        };
        match self.heads {
            HeadMean::Group => Ok(view.group_mean(scores)),
            HeadMean::Layer => Ok(view.layer_mean(scores)),
            HeadMean::Retrieval(heads) => heads.mean(scores, view),
        }
    }
}
