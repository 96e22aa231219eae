use std::{any::Any, fmt::Debug, sync::Arc};

use crate::{LayerView, Result, ops::Pool, stage::AttentionRequest};

/// Distributes a budget over layers and, with stores that hold heads of different lengths, over
/// heads.
pub trait Allocator: Any + Debug + Send + Sync {
    /// Name in tables and errors.
    fn name(&self) -> &str;

    /// Name and main parameters, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns what the allocator needs from the attention pass, besides the scorer's request.
    fn observes(&self) -> AttentionRequest {
        AttentionRequest::nothing()
    }

    /// Whether it reads a [`Profile`](crate::Profile) of the model.
    fn reads_profile(&self) -> bool {
        false
    }

    /// Whether it reads the policy's [scores](LayerView::scores), which are then computed before
    /// [`allocate`](Self::allocate).
    fn reads_scores(&self) -> bool {
        false
    }

    /// Whether heads of a layer may get different numbers.
    fn allocates_heads(&self) -> bool {
        false
    }

    /// Whether budgets depend on [measurements](Self::measure) of other layers. Layers of a prompt
    /// are then compressed again as more of them arrive: entries are dropped step by step, or
    /// merged once at the last layer.
    fn measures(&self) -> bool {
        false
    }

    /// Whether a layer's budget depends on its number or on other layers. A cache per layer
    /// ([`KvCache::per_layer`](crate::KvCache::per_layer)) refuses such an allocator.
    fn spans_layers(&self) -> bool {
        self.measures()
    }

    /// Measures a layer when a prompt is complete: one number per batch row.
    ///
    /// # Errors
    /// Any error of the allocator; the cache stays as it was.
    fn measure(&self, view: &LayerView<'_>) -> Result<Vec<f64>> {
        Ok(vec![0.0; view.seen.len()])
    }

    /// Whether every decode step launches the same kernels without reading from the device, so that
    /// it can be captured and replayed.
    ///
    /// A capturable allocator works without the entries: its numbers follow from budgets, tokens
    /// held and seen, and measures. Under a budget that grows with the tokens seen, it is asked
    /// ahead for future tokens.
    fn is_capturable(&self) -> bool {
        false
    }

    /// Whether its allocations sum to no more than the budget of all layers. An allocator that
    /// keeps some layers whole, whatever the budget, returns `false`.
    fn holds_budget(&self) -> bool {
        true
    }

    /// Returns the allocator with another window of queries, for
    /// [`Policy::with_window`](crate::Policy::with_window); `None` if it has no window.
    fn with_window(&self, _window: usize) -> Option<Arc<dyn Allocator>> {
        None
    }

    /// Returns the allocator with another pooling, for
    /// [`Policy::with_pool`](crate::Policy::with_pool); `None` if it does not pool.
    fn with_pool(&self, _pool: Pool) -> Option<Arc<dyn Allocator>> {
        None
    }

    /// Returns how many entries the layer keeps.
    ///
    /// # Errors
    /// Any error of the allocator; the cache stays as it was.
    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation>;

    /// Allocates for all layers at once, after a second pass over the prompt: the scores of all
    /// layers are then known before any layer is compressed.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_together(&self, views: &[LayerView<'_>]) -> Result<Vec<Allocation>> {
        views.iter().map(|view| self.allocate(view)).collect()
    }
}

/// Number of entries that a layer keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocation {
    /// One number per batch row, the same for every kv head.
    Rows(Vec<usize>),
    /// One number per batch row and kv head, rows first.
    Heads(Vec<usize>),
}
