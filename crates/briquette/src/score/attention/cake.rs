//! CAKE: Qin et al., 2025, *CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences*
//! ([arXiv 2503.12491](https://arxiv.org/abs/2503.12491)), Eq. 10.
//!
//! ```text
//! u[j] = mean of A[i, j] + γ · variance of A[i, j]      over the last w queries i
//! p[j] = mean of u[j − 2] … u[j + 2],   zeros beyond the ends and in the window
//! s[j] = mean of p[j] over the query heads that share a kv head
//! ```
//!
//! Protected: the last w tokens.

use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::outside_window,
    score::{AttentionRequest, Moments, Pool, Scorer},
};

/// Mean attention weight that a token receives from the last `window` queries, plus `gamma` times
/// its variance over them, pooled along the tokens: CAKE (Qin et al., 2025, Eq. 10).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cake {
    /// Number of queries observed. Their own tokens stay out of the pooling.
    pub window: usize,
    /// Factor of the variance.
    pub gamma: f64,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
}

impl Scorer for Cake {
    fn name(&self) -> &str {
        "cake"
    }

    fn summary(&self) -> String {
        format!("{} {}, γ {}{}", self.name(), self.window, self.gamma, Pool::summary(self.pool))
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn check(&self) -> Result<()> {
        check::window("score.window", self.window)?;
        if !(self.gamma.is_finite() && self.gamma >= 0.0) {
            return check::refuse("score.gamma", self.gamma, "0 or more");
        }
        check::pool(self.pool)
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { window, ..*self }))
    }

    fn with_pool(&self, pool: Pool) -> Option<Arc<dyn Scorer>> {
        Some(Arc::new(Self { pool: Some(pool), ..*self }))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let wanted = Moments { variance: true, ..Moments::default() };
        let moments = view.moments(self.window, wanted, self.name())?;
        let scores = match moments.variance() {
            Some(variance) => moments.own_mean() + variance * self.gamma,
            None => moments.own_mean(),
        };
        let scores = match self.pool {
            None => scores,
            Some(pool) => pool.apply(outside_window(scores, self.window)),
        };
        Ok(view.group_mean(scores))
    }
}
