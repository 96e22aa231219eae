use std::{any::Any, fmt::Debug, sync::Arc};

use crate::{LayerView, Result, observes::Observes, ops::Pool};

/// Shares a budget out over layers and, with stores that hold heads of different lengths, heads.
pub trait Allocator: Any + Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
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

    /// What the attention pass must report for it, besides what the scorer wants.
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Whether it reads a [`Profile`](crate::Profile) of the model.
    fn reads_profile(&self) -> bool {
        false
    }

    /// Whether it looks at the policy's [scores](LayerView::scores), which are then computed before it is asked.
    fn reads_scores(&self) -> bool {
        false
    }

    /// Whether heads of a layer may get different numbers.
    fn allocates_heads(&self) -> bool {
        false
    }

    /// Whether budgets depend on what is [measured](Self::measure) of other layers. Layers of a prompt are then
    /// compressed again as more of them arrive: entries are dropped step by step, or merged once when the last
    /// layer has arrived.
    fn measures(&self) -> bool {
        false
    }

    /// What is measured of a layer when a prompt is complete, one number a batch row.
    ///
    /// # Errors
    /// Whatever keeps the allocator from measuring; the cache is then left as it was.
    fn measure(&self, view: &LayerView<'_>) -> Result<Vec<f64>> {
        Ok(vec![0.0; view.seen.len()])
    }

    /// Whether every decode step launches the same kernels without reading from the device, so that
    /// it can be captured and replayed.
    fn is_capturable(&self) -> bool {
        false
    }

    /// Whether what it allocates adds up to no more than the budget of all layers. One that keeps some layers whole,
    /// whatever the budget, does not.
    fn holds_budget(&self) -> bool {
        true
    }

    /// The same allocator with another window of queries, for
    /// [`Policy::with_window`](crate::Policy::with_window); `None` if it has no window.
    fn with_window(&self, _window: usize) -> Option<Arc<dyn Allocator>> {
        None
    }

    /// The same allocator with another pooling, for
    /// [`Policy::with_pool`](crate::Policy::with_pool); `None` if it cannot pool.
    fn with_pool(&self, _pool: Pool) -> Option<Arc<dyn Allocator>> {
        None
    }

    /// How many entries the layer keeps.
    ///
    /// # Errors
    /// Whatever keeps the allocator from answering; the cache is then left as it was.
    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation>;

    /// The same of all layers at once, where the scores of all are known before any is compressed: after a second pass
    /// over the prompt.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_together(&self, views: &[LayerView<'_>]) -> Result<Vec<Allocation>> {
        views.iter().map(|view| self.allocate(view)).collect()
    }
}

/// How many entries are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Allocation {
    /// One number a batch row, the same for every kv head.
    Rows(Vec<usize>),
    /// One number a batch row and kv head, rows first.
    Heads(Vec<usize>),
}
