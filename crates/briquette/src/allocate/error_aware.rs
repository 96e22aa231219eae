use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result, check};

/// Layer budgets by how much each layer's output suffers from a small cache: CompressKV, Algorithm
/// 1, with the errors in the model's profile.
///
/// Every layer gets `least` tokens. The rest is distributed in proportion to the errors; no layer
/// gets more than `most` times an even share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorAware {
    /// Minimum number of tokens per layer; the budget itself if that is smaller.
    pub least: usize,
    /// Maximum budget of a layer, as a multiple of an even share.
    pub most: f64,
}

impl Allocator for ErrorAware {
    fn name(&self) -> &str {
        "error-aware"
    }

    fn summary(&self) -> String {
        format!("{}, {} to {} shares", self.name(), self.least, self.most)
    }

    fn check(&self) -> Result<()> {
        check::count("allocate.least", self.least)?;
        check::factor("allocate.most", self.most)
    }

    fn reads_profile(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        Ok(Allocation::Rows(self.of_rows(view, self.name())?))
    }
}

impl ErrorAware {
    /// Budget of the layer, one number per batch row.
    pub(super) fn of_rows(&self, view: &LayerView<'_>, stage: &str) -> Result<Vec<usize>> {
        let errors = &view.profile(stage)?.layer_errors;
        let rows = view.budget.iter().zip(view.seen);
        let of_row =
            |(&budget, &seen): (&usize, &usize)| self.budgets(budget, seen, errors)[view.layer];
        Ok(rows.map(of_row).collect())
    }

    /// Budgets of all layers by Algorithm 1; no layer gets more tokens than there are.
    fn budgets(&self, budget: usize, seen: usize, errors: &[f64]) -> Vec<usize> {
        let layers = errors.len();
        let least = self.least.min(budget);
        let most = ((budget as f64 * self.most) as usize).max(budget).min(seen.max(least));
        let total = layers * budget;
        let sum: f64 = errors.iter().sum();
        let share = |error: f64| if sum > 0.0 { error / sum } else { 1.0 / layers as f64 };
        let free = (total - layers * least) as f64;
        let mut budgets: Vec<usize> = errors
            .iter()
            .map(|&error| (least + (share(error) * free).round() as usize).clamp(least, most))
            .collect();
        // Of equal errors the first, both ways.
        let mut order: Vec<usize> = (0..layers).collect();
        order.sort_by(|&a, &b| errors[b].total_cmp(&errors[a]).then(a.cmp(&b)));
        let mut rising: Vec<usize> = (0..layers).collect();
        rising.sort_by(|&a, &b| errors[a].total_cmp(&errors[b]).then(a.cmp(&b)));
        let mut sum: usize = budgets.iter().sum();
        for layer in order {
            let more = (total.saturating_sub(sum)).min(most - budgets[layer]);
            budgets[layer] += more;
            sum += more;
        }
        for layer in rising {
            let less = (sum.saturating_sub(total)).min(budgets[layer] - least);
            budgets[layer] -= less;
            sum -= less;
        }
        budgets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_with_the_largest_error_takes_what_is_left() {
        let allocator = ErrorAware { least: 4, most: 3.0 };
        // 4 each, and 4 · 6 = 24 by error: 12, 6, 6, 0.
        assert_eq!(allocator.budgets(10, 99, &[0.5, 0.25, 0.25, 0.0]), [16, 10, 10, 4]);
        // The first may have 30; the next largest takes the rest.
        let steep = ErrorAware { least: 1, most: 1.5 };
        assert_eq!(steep.budgets(10, 99, &[0.9, 0.06, 0.04]), [15, 13, 2]);
        // Halves are rounded up, one too many in all: of the smallest errors above the minimum the
        // first gives it back.
        let halves = ErrorAware { least: 1, most: 3.0 };
        assert_eq!(halves.budgets(2, 99, &[0.5, 0.5, 0.0]), [2, 3, 1]);
        assert_eq!(halves.budgets(3, 99, &[0.0, 0.0]), [3, 3]);
        // No layer gets more than there is; where that is within the budget, all keep it.
        assert_eq!(allocator.budgets(10, 12, &[0.5, 0.25, 0.25, 0.0]), [12, 12, 12, 4]);
        assert_eq!(allocator.budgets(10, 9, &[0.5, 0.25, 0.25, 0.0]), [9, 9, 9, 9]);
        assert_eq!(ErrorAware { least: 32, most: 3.0 }.budgets(8, 99, &[0.9, 0.1]), [8, 8]);
    }
}
