use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator, apportion::apportion};
use crate::{LayerView, Result, check, view::Bounds};

/// Layer budgets that fall from the first layer to the last in equal steps and sum to the total of
/// equal ones: PyramidKV (Cai et al., 2024, section 4.2).
///
/// Besides the protected entries, the last layer gets 1 / `beta` of an even share. The first layer
/// gets as much more than an even share as the last gets less. If that is more than there are
/// tokens, the first layer keeps all of them and the last gives up less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pyramid {
    /// Steepness: 1 is uniform.
    pub beta: f64,
}

impl Allocator for Pyramid {
    fn name(&self) -> &str {
        "pyramid"
    }

    fn summary(&self) -> String {
        format!("{}, β {}", self.name(), self.beta)
    }

    fn check(&self) -> Result<()> {
        check::factor("allocate.beta", self.beta)
    }

    fn spans_layers(&self) -> bool {
        true
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let layers = view.shape.layers;
        let of_row = |row: usize| {
            let protected = view.protected(view.budget[row]);
            let even = view.budget[row].saturating_sub(protected);
            let most = view.seen[row].saturating_sub(protected);
            let share = even as f64;
            let mut last = share / self.beta;
            let mut first = 2.0 * share - last;
            if first > most as f64 {
                first = most as f64;
                last = (2.0 * share - first).max(0.0);
            }
            let step = if layers > 1 { (first - last) / (layers - 1) as f64 } else { 0.0 };
            let start = if layers > 1 { first } else { share };
            let weights: Vec<f64> = (0..layers).map(|layer| start - layer as f64 * step).collect();
            let shares = apportion(&weights, Bounds { total: layers * even, least: 0, most });
            protected + shares[view.layer]
        };
        Ok(Allocation::Rows((0..view.budget.len()).map(of_row).collect()))
    }
}
