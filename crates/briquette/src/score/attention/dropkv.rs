//! DropKV, 2026 ([OpenReview MqfNzH3TVH](https://openreview.net/forum?id=MqfNzH3TVH); the formula
//! as its authors give it in a [pull request](https://github.com/NVIDIA/kvpress/pull/285) to
//! kvpress).
//!
//! ```text
//! s[j] = Σ_i (p_i[j] / (1 − p_i[j]))² · ‖v[j] − o_i‖²      over the last 32 queries i
//!
//! with p_i[j] what query i gives token j, and o_i its output
//! ```
//!
//! Protected: those 32 tokens.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::precise_product,
    score::{AttentionRequest, Pool, Scorer},
};

/// Distance by which the attention output of the last `window` queries would move without a token:
/// DropKV (2026, [OpenReview MqfNzH3TVH](https://openreview.net/forum?id=MqfNzH3TVH)).
///
/// Σ over the queries of (p / (1 − p))² · ‖v − o‖², with p the weight that a query gives the token,
/// v the value of the token and o the output of the query; the mean over the query heads that share
/// a kv head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropKv {
    /// Number of queries observed.
    pub window: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
}

impl Scorer for DropKv {
    fn name(&self) -> &str {
        "dropkv"
    }

    fn summary(&self) -> String {
        format!("{} {}{}", self.name(), self.window, Pool::summary(self.pool))
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)?;
        check::pool(self.pool)
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { window, ..*self }))
    }

    fn with_pool(&self, pool: Pool) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { pool: Some(pool), ..*self }))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        /// Minimum of 1 − p, where a query sees nothing else.
        const LEAST: f64 = 1e-6;
        let (weights, _) = view.last_queries(self.window, self.name())?;
        let values = view.values()?.cast(DType::F32);
        let [batch, heads, columns, _] = values.dims();
        let [_, query_heads, queries, _] = weights.dims();
        let group = query_heads / heads;
        let weights = weights.reshape([batch, heads, group * queries, columns]);
        let outputs = precise_product(weights.clone(), values.clone());
        let odds = (weights.clone() / weights.neg().add_scalar(1.0).clamp_min(LEAST)).square();
        // ‖v − o‖² in its three parts: no tensor of queries by tokens by channels.
        let odds = odds.swap_dims(2, 3);
        let lengths = outputs.clone().square().sum_dim(3);
        let moved = precise_product(odds.clone(), lengths)
            - (precise_product(odds.clone(), outputs) * values.clone()).sum_dim(3) * 2.0
            + odds.sum_dim(3) * values.square().sum_dim(3);
        let scores = (moved / group as f64).squeeze_dim::<3>(3);
        Ok(self.pool.map_or(scores.clone(), |pool| pool.apply(scores)))
    }
}
