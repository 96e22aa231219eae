use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result, check};

/// Keeps the entries of each head that score at least `threshold`, and the protected ones, up to
/// the budget. DMS (Łańcucki et al., 2025, [arXiv 2506.05345](https://arxiv.org/abs/2506.05345))
/// evicts by this rule with trained decisions; here a score takes their place, as in DMSPress of
/// kvpress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboveThreshold {
    /// Lowest score of an entry that is kept.
    pub threshold: f64,
}

impl Allocator for AboveThreshold {
    fn name(&self) -> &str {
        "above-threshold"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.threshold)
    }

    fn check(&self) -> Result<()> {
        if self.threshold.is_finite() {
            return Ok(());
        }
        check::refuse("allocate.threshold", self.threshold, "a finite number")
    }

    fn reads_scores(&self) -> bool {
        true
    }

    fn allocates_heads(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let scores = view.scores(self.name())?.clone().try_into_vec_as::<f32>()?;
        let of_head = |(index, &held): (usize, &usize)| {
            let budget = view.budget[index / view.shape.kv_heads];
            let own = view.unprotected(&scores, index, budget);
            let above = own.iter().filter(|&&it| f64::from(it) >= self.threshold);
            (above.count() + held - own.len()).min(budget).max(1)
        };
        Ok(Allocation::Heads(view.lengths.iter().enumerate().map(of_head).collect()))
    }
}
