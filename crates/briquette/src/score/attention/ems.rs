//! EMS: Li et al., 2024, *EMS: Adaptive Evict-then-Merge Strategy for Head-wise KV Cache
//! Compression Based on Global-Local Importance* ([arXiv
//! 2412.08521](https://arxiv.org/abs/2412.08521)), Eq. 2.
//!
//! ```text
//! s[j] = max(s_Glo[j] · (Σ s_Loc / N) / (Σ s_Glo / N), s_Loc[j]), mean-pooled over 7 tokens
//! ```
//!
//! Protected: the last w tokens, the window.

use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::GlobalLocalInput,
    ops::Statistic,
    score::{AttentionRequest, Dependencies, Pool, Scorer},
    stage::is_default,
};

/// Global-Local score of EMS (Li et al., 2024, Eq. 2): the larger of a token's attention weight
/// from the last queries and its weight from all queries, scaled to the same level. Scores are
/// pooled along the tokens.
///
/// With `s_Glo` the sums over all queries and `s_Loc` those over a window, s = max(s_Glo · (Σ
/// `s_Loc` / N) / (Σ `s_Glo` / N), `s_Loc`), sums over the context: the factor is w / N when a
/// whole prompt has arrived. The window is the last `window` queries of a prompt, and `window` to 2
/// · `window` − 1 queries in decoding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ems {
    /// Number of queries of the window, `L_win`.
    pub window: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Queries that count (Table 4).
    #[serde(default, skip_serializing_if = "is_default")]
    pub from: ScoreFrom,
    /// Whether the scores of the last `window` tokens, which are always kept, count in the pooling
    /// of the tokens before them; otherwise zeros take their place, as in SnapKV.
    #[serde(default, skip_serializing_if = "is_default")]
    pub pool_window: bool,
}

/// Queries that count in a [`Ems`] score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ScoreFrom {
    /// The larger of both: `s_Glo-Loc`.
    #[default]
    Both,
    /// All queries: `s_Glo`.
    All,
    /// The queries of the window: `s_Loc`.
    Window,
}

impl Default for Ems {
    /// Defaults of the paper for language modelling: a window of 32, mean-pooled over 7 tokens.
    fn default() -> Self {
        Self {
            window: 32,
            pool: Some(Pool::avg(7)),
            from: ScoreFrom::default(),
            pool_window: false,
        }
    }
}

impl Scorer for Ems {
    fn name(&self) -> &str {
        "ems"
    }

    fn summary(&self) -> String {
        let from = match self.from {
            ScoreFrom::Both => "",
            ScoreFrom::All => ", all queries",
            ScoreFrom::Window => ", the window",
        };
        format!("{} {}{}{from}", self.name(), self.window, Pool::summary(self.pool))
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::local(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)?;
        check::pool(self.pool)
    }

    fn depends_on(&self) -> Dependencies {
        Dependencies { order: true, ..Dependencies::none() }
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { window, ..*self }))
    }

    fn with_pool(&self, pool: Pool) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { pool: Some(pool), ..*self }))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let statistic = |of| view.statistic(of, self.name());
        let (sums, past) = (statistic(Statistic::Sums)?, statistic(Statistic::LocalPast)?);
        let current = statistic(Statistic::LocalCurrent)?;
        // Where both are the same the factor is one, and so is the larger of the two.
        let (sums, past, current) = match self.from {
            ScoreFrom::Both => (sums, past, current),
            ScoreFrom::All => (sums.clone(), sums, current.zeros_like()),
            ScoreFrom::Window => (past.clone() + current.clone(), past, current),
        };
        Ok(view.ops.global_local(GlobalLocalInput {
            sums,
            past,
            current,
            kv_heads: view.shape.kv_heads,
            window: if self.pool_window { 0 } else { self.window },
            pool: self.pool,
        })?)
    }
}
