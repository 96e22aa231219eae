//! CriticalKV: Feng et al., 2025 ([arXiv 2502.03805](https://arxiv.org/abs/2502.03805)).
//!
//! ```text
//! s[j] = ∞ for the highest scores inside, half of the budget
//! s[j] = (score + ε) · ‖W_O v[j]‖₁, the mean of a group, for the rest
//! ```
//!
//! Protected: what the policy says.

use std::sync::Arc;

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    score::{Scorer, support::best},
    view::reach,
};

/// Scores of another scorer for a part of the budget, and for the rest those scores times the
/// length of a token's value behind the output projection: CriticalKV (Feng et al., 2025, [arXiv
/// 2502.03805](https://arxiv.org/abs/2502.03805)).
///
/// s = (score + ε) · ‖W_O v‖₁, the mean over the query heads that share a kv head. It reads the
/// model's [output projections](crate::CacheConfig::with_output_weights).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CriticalKv {
    /// Share of the budget for the highest scores as they are.
    pub first: f64,
    /// Number added to a score: ε.
    pub epsilon: f64,
    /// Wrapped scorer.
    pub of: Arc<dyn Scorer>,
}

impl CriticalKv {
    /// Wraps `scorer`, with half of the budget for its scores as they are, and ε = 10⁻⁴.
    pub fn of(scorer: impl Scorer) -> Self {
        Self { first: 0.5, epsilon: 1e-4, of: Arc::new(scorer) }
    }
}

impl Scorer for CriticalKv {
    fn name(&self) -> &str {
        "criticalkv"
    }

    fn summary(&self) -> String {
        format!("{} {}%, {}", self.name(), self.first * 100.0, self.of.summary())
    }

    fn inner(&self) -> Option<&dyn Scorer> {
        Some(self.of.as_ref())
    }

    fn check(&self) -> Result<()> {
        check::share("score.first", self.first)?;
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return check::refuse("score.epsilon", self.epsilon, "at least 0");
        }
        self.of.check()
    }

    fn reads_output_weights(&self) -> bool {
        true
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        // Above all products, and one number for all of them: each is kept.
        const FIRST: f64 = 1e30;
        let scores = self.of.score(view)?.cast(DType::F32);
        let heads = view.shape.kv_heads;
        let of_heads = |of_row: &dyn Fn(usize) -> usize| -> Vec<usize> {
            let of_row = |&budget: &usize| std::iter::repeat_n(of_row(budget), heads);
            view.budget.iter().flat_map(of_row).collect()
        };
        let keep = of_heads(&|budget| (budget as f64 * self.first) as usize);
        let recent = of_heads(&|budget| view.protect.recent_tokens(budget));
        let first = best(view, &scores, &keep, view.protect.sinks, &recent)?;
        let weight = view.output_weight(self.name())?;
        let reach = reach(view.values()?, weight, view.shape, |x| x.abs().sum_dim(3));
        let reach = reach.mean_dim(2).squeeze_dim::<3>(2);
        Ok(((scores + self.epsilon) * reach).mask_fill(first.greater_elem(0.5), FIRST))
    }
}
