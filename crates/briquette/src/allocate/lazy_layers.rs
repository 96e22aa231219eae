use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Moments},
};

/// Applies the budget to lazy layers only, which attend to the first and last tokens anyway, and
/// keeps everything in the others: SimLayerKV (Zhang et al., 2024, [arXiv
/// 2410.13846](https://arxiv.org/abs/2410.13846)).
///
/// A layer is lazy in a batch row if its last `window` queries give more than `threshold` of their
/// attention to first and last tokens, as a mean over queries and query heads. The first tokens are
/// the protected ones. The last tokens are those before the window: as many as the budget leaves
/// beside the first, plus `window`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LazyLayers {
    /// Share of the attention above which a layer is lazy.
    pub threshold: f64,
    /// Number of queries observed.
    pub window: usize,
}

impl Allocator for LazyLayers {
    fn name(&self) -> &str {
        "lazy-layers"
    }

    fn summary(&self) -> String {
        format!("{}, above {}", self.name(), self.threshold)
    }

    fn check(&self) -> Result<()> {
        check::share("allocate.threshold", self.threshold)?;
        check::window("allocate.window", self.window)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::window(self.window)
    }

    fn holds_budget(&self) -> bool {
        false
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let weights = view.moments(self.window, Moments::default(), self.name())?.own_mean();
        let weights = view.layer_mean(weights).narrow(1, 0, 1);
        let columns = weights.dims()[2];
        let weights = weights.try_into_vec_as::<f32>()?;
        let of_row = |row: usize| {
            let heads = view.shape.kv_heads;
            let held = view.lengths[row * heads..][..heads].iter().copied().max().unwrap_or(0);
            let sinks = view.protect.sinks;
            let recent = view.budget[row].saturating_sub(sinks).saturating_add(self.window);
            let window = view.window_queries[row].min(self.window);
            // A short prompt has no middle.
            let Some(before) =
                held.checked_sub(window).filter(|&it| it > sinks.saturating_add(recent))
            else {
                return held.max(1);
            };
            let own = &weights[row * columns..][columns - held..][..before];
            let sum = |part: &[f32]| part.iter().map(|&x| f64::from(x)).sum::<f64>();
            let lazy = sum(&own[..sinks]) + sum(&own[before - recent..]) > self.threshold;
            if lazy { view.budget[row] } else { held }
        };
        Ok(Allocation::Rows((0..view.budget.len()).map(of_row).collect()))
    }
}
