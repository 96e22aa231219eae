//! R-KV: Cai et al., 2025, *R-KV: Redundancy-aware KV Cache Compression for Reasoning Models*
//! ([arXiv 2505.24133](https://arxiv.org/abs/2505.24133)).
//!
//! ```text
//! a[j] = mean weight from the last 8 queries, max-pooled over 7 tokens, the mean of a group
//! r[j] = softmax over the entries of a head of the mean cosine of k[j] with the other keys
//! s[j] = λ a[j] − (1 − λ) r[j]
//! ```
//!
//! Protected: the last 8 tokens.

use burn::tensor::{FloatDType, Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{precise_product, unit},
    score::{AttentionRequest, Scorer, WindowAttention, support::at_entries},
};

/// Attention that a token receives from the last queries, less the similarity of its key to the
/// others of its head: R-KV (Cai et al., 2025, [arXiv
/// 2505.24133](https://arxiv.org/abs/2505.24133)).
///
/// s = λ · attention − (1 − λ) · softmax over the entries of the mean cosine with the other keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RKv {
    /// Scorer of the attention.
    pub attention: WindowAttention,
    /// Weight of the attention: λ, 0 to 1.
    pub lambda: f64,
}

impl Scorer for RKv {
    fn name(&self) -> &str {
        "r-kv"
    }

    fn summary(&self) -> String {
        format!("{}, λ {}, {}", self.name(), self.lambda, self.attention.summary())
    }

    fn observes(&self) -> AttentionRequest {
        self.attention.observes()
    }

    fn check(&self) -> Result<()> {
        self.attention.check()?;
        check::share("score.lambda", self.lambda)
    }

    fn reads_profile(&self) -> bool {
        self.attention.reads_profile()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let attention = self.attention.score(view)?;
        let keys = at_entries(view, unit(view.keys()?));
        let held = view.positions().clone().greater_equal_scalar(0);
        let number = held.clone().int().sum_dim(2).cast(FloatDType::F32).clamp_min(1.0);
        // The sum of all cosines of a key, less the one with itself.
        let all = precise_product(keys.clone(), keys.clone().sum_dim(2).swap_dims(2, 3));
        let others = (all - keys.square().sum_dim(3)).squeeze_dim::<3>(3) / number;
        let alike = softmax(others.mask_fill(held.bool_not(), -1e30), 2);
        Ok(attention * self.lambda - alike * (1.0 - self.lambda))
    }
}
