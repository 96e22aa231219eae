use std::sync::Arc;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator, apportion::apportion};
use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Moments},
    view::Bounds,
};

/// Layer budgets by the entropy and variance of the layers' attention: CAKE (Qin et al., 2025, Eq.
/// 5 to 7).
///
/// The preference of a layer is H^(1/`tau1`) · V^(1/`tau2`). H is the entropy of the weights that
/// the last `window` queries give to the tokens before them, and V their variance over those
/// queries; both are summed over heads. As the layers of a prompt arrive, earlier layers give up
/// tokens to the new one (the cascade), so that the layers that have arrived never hold more than
/// the total budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preference {
    /// Number of queries observed.
    pub window: usize,
    /// Temperature of the entropy.
    pub tau1: f64,
    /// Temperature of the variance.
    pub tau2: f64,
}

impl Allocator for Preference {
    fn name(&self) -> &str {
        "preference"
    }

    fn summary(&self) -> String {
        format!("{}, τ {} and {}", self.name(), self.tau1, self.tau2)
    }

    fn check(&self) -> Result<()> {
        check::positive("allocate.tau1", self.tau1)?;
        check::positive("allocate.tau2", self.tau2)?;
        check::window("allocate.window", self.window)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Allocator>> {
        Some(Arc::new(Self { window, ..*self }))
    }

    fn measures(&self) -> bool {
        true
    }

    fn measure(&self, view: &LayerView<'_>) -> Result<Vec<f64>> {
        let rows = view.seen.len();
        let before = view.positions().dims()[2].saturating_sub(self.window);
        let wanted = Moments { variance: true, entropy: true };
        let moments = view.moments(self.window, wanted, self.name())?;
        let (Some(entropy), Some(variance)) = (moments.entropy(), moments.variance()) else {
            return Ok(vec![0.0; rows]);
        };
        if before == 0 {
            return Ok(vec![0.0; rows]);
        }
        let sums = |x: Tensor<3>| {
            let x: Tensor<2> = x.narrow(2, 0, before).reshape([rows as i32, -1]);
            x.sum_dim(1)
        };
        let both = Tensor::cat(vec![sums(entropy), sums(variance)], 1).try_into_vec_as::<f32>()?;
        let preference = |both: &[f32]| {
            let (entropy, variance) = (f64::from(both[0]).max(0.0), f64::from(both[1]).max(0.0));
            entropy.powf(1.0 / self.tau1) * variance.powf(1.0 / self.tau2)
        };
        Ok(both.chunks(2).map(preference).collect())
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let of_row = |row: usize| {
            let protected = view.protected(view.budget[row]);
            let even = view.budget[row].saturating_sub(protected);
            let most = view.seen[row].saturating_sub(protected);
            let bounds = Bounds { total: view.shape.layers * even, least: 0, most };
            let share =
                view.share(row, bounds, self.name(), |preferences| apportion(preferences, bounds))?;
            Ok(protected + share)
        };
        let rows: Result<_> = (0..view.budget.len()).map(of_row).collect();
        Ok(Allocation::Rows(rows?))
    }
}
