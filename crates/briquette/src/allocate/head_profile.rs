use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator, apportion::apportion};
use crate::{CacheShape, HeadScoreKind, LayerView, Profile, Result, check, view::Bounds};

/// Head budgets from the model's profile: HeadKV (Fu et al., 2024, section 3.3).
///
/// Besides the protected entries, every head gives 1 / `beta` of an even share to a pool of the
/// whole model. Heads get back from the pool in proportion to their scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadProfile {
    /// Divisor of the share that each head gives to the pool: 1 pools everything.
    pub beta: f64,
    /// Measure of the profile that scores the heads.
    #[serde(default)]
    pub by: HeadScoreKind,
}

impl Allocator for HeadProfile {
    fn name(&self) -> &str {
        "head-profile"
    }

    fn summary(&self) -> String {
        format!("{}, β {}", self.name(), self.beta)
    }

    fn check(&self) -> Result<()> {
        check::factor("allocate.beta", self.beta)
    }

    fn reads_profile(&self) -> bool {
        true
    }

    fn allocates_heads(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let CacheShape { layers, kv_heads, .. } = view.shape;
        let all = layers * kv_heads;
        let importance = self.importance(view.profile(self.name())?, view.shape);
        let mut keep = Vec::with_capacity(view.lengths.len());
        for (row, &budget) in view.budget.iter().enumerate() {
            let protected = view.protected(budget);
            let even = budget.saturating_sub(protected);
            let most = view.seen[row].saturating_sub(protected);
            let pooled = even as f64 / self.beta;
            let own = even as f64 - pooled;
            let shares: Vec<f64> =
                importance.iter().map(|share| own + share * pooled * all as f64).collect();
            let shares = apportion(&shares, Bounds { total: all * even, least: 0, most });
            let of_layer = &shares[view.layer * kv_heads..][..kv_heads];
            keep.extend(of_layer.iter().map(|share| protected + share));
        }
        Ok(Allocation::Heads(keep))
    }
}

impl HeadProfile {
    /// Share of each kv head of the model, layer by layer; the shares sum to one.
    fn importance(&self, profile: &Profile, shape: CacheShape) -> Vec<f64> {
        let group = shape.group();
        let of_group = |scores: &[f64]| scores.iter().sum::<f64>() / group as f64;
        let scores = profile.heads.get(self.by);
        let scores: Vec<f64> =
            scores.iter().flat_map(|layer| layer.chunks(group).map(of_group)).collect();
        let total: f64 = scores.iter().sum();
        let even = 1.0 / scores.len() as f64;
        scores.iter().map(|score| if total > 0.0 { score / total } else { even }).collect()
    }
}
