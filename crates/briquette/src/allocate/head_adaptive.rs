use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator, ErrorAware};
use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Pool, Scorer, WindowAttention},
};

/// Head budgets by where a layer's highest scores are: AdaKV (Feng et al., 2024, Algorithm 1). With
/// `layers`, within layer budgets of their own: AdaCompressKV (CompressKV, appendix D).
///
/// Besides the protected entries, each head keeps its own best tokens up to `floor` of an even
/// share. The highest remaining scores get the rest of the layer's budget, whichever head they are
/// in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadAdaptive {
    /// Minimum budget of a head as a share of an even budget, protected tokens included.
    pub floor: f64,
    /// Scorer by which heads are compared; if absent, the policy's. For policies whose scorer gives
    /// all heads the same tokens (CompressKV).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<WindowAttention>,
    /// Layer budgets that the heads of each layer share; the policy's budget if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<ErrorAware>,
}

impl Default for HeadAdaptive {
    /// Defaults of AdaKV: each head keeps at least a fifth of an even budget, heads compared by the
    /// policy's scores, the same budget for every layer.
    fn default() -> Self {
        Self { floor: 0.2, by: None, layers: None }
    }
}

impl Allocator for HeadAdaptive {
    fn name(&self) -> &str {
        "head-adaptive"
    }

    fn summary(&self) -> String {
        let layers =
            self.layers.map_or(String::new(), |layers| format!(" of {}", layers.summary()));
        format!("{}, floor {}%{layers}", self.name(), self.floor * 100.0)
    }

    fn check(&self) -> Result<()> {
        check::share("allocate.floor", self.floor)?;
        self.layers.map_or(Ok(()), |layers| layers.check())?;
        self.by.map_or(Ok(()), |by| by.check())
    }

    fn observes(&self) -> AttentionRequest {
        self.by.map_or_else(AttentionRequest::nothing, |by| by.observes())
    }

    fn reads_profile(&self) -> bool {
        self.layers.is_some() || self.by.is_some_and(|by| by.reads_profile())
    }

    fn reads_scores(&self) -> bool {
        self.by.is_none()
    }

    fn with_window(&self, window: usize) -> Option<Arc<dyn Allocator>> {
        let by = Some(WindowAttention { window, ..self.by? });
        Some(Arc::new(Self { by, ..*self }))
    }

    fn with_pool(&self, pool: Pool) -> Option<Arc<dyn Allocator>> {
        let by = Some(WindowAttention { pool: Some(pool), ..self.by? });
        Some(Arc::new(Self { by, ..*self }))
    }

    fn allocates_heads(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let heads = view.shape.kv_heads;
        let scores = match &self.by {
            None => view.scores(self.name())?.clone(),
            Some(by) => by.score(view)?,
        };
        let scores = scores.try_into_vec_as::<f32>()?;
        let budgets = match &self.layers {
            None => view.budget.to_vec(),
            Some(layers) => layers.of_rows(view, self.name())?,
        };
        let mut keep = Vec::with_capacity(view.lengths.len());
        for (row, budget) in budgets.into_iter().enumerate() {
            let protected = view.protected(budget);
            // No head is left with nothing.
            let least = usize::from(protected == 0);
            let floor =
                ((budget as f64 * self.floor) as usize).saturating_sub(protected).max(least);
            let mut left = heads * budget.saturating_sub(protected);
            let mut of_heads = vec![protected; heads];
            let mut pool: Vec<(f32, usize, usize)> = Vec::new();
            for (head, sure) in of_heads.iter_mut().enumerate() {
                let own = view.unprotected(&scores, row * heads + head, budget).iter().enumerate();
                let mut own: Vec<(f32, usize, usize)> =
                    own.map(|(entry, &score)| (score, head, entry)).collect();
                own.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
                let guaranteed = floor.min(own.len());
                *sure += guaranteed;
                left = left.saturating_sub(guaranteed);
                pool.extend(own.drain(guaranteed..));
            }
            pool.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
            for &(_, head, _) in pool.iter().take(left) {
                of_heads[head] += 1;
            }
            keep.extend(of_heads.into_iter().map(|keep| keep.max(1)));
        }
        Ok(Allocation::Heads(keep))
    }
}
