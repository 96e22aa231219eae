use std::{any::Any, fmt::Debug, sync::Arc};

use burn::tensor::Tensor;

use crate::{LayerView, Result, ops::Pool, stage::AttentionRequest};

/// Scores the entries of a layer; the highest are kept longest.
pub trait Scorer: Any + Debug + Send + Sync {
    /// Name in tables and errors.
    fn name(&self) -> &str;

    /// Name and main parameters, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Returns the scorer that this one wraps, if any. By default a wrapper observes and reads the
    /// same as the scorer it wraps.
    fn inner(&self) -> Option<&dyn Scorer> {
        None
    }

    /// Returns what [`score`](Self::score) needs from the attention pass.
    fn observes(&self) -> AttentionRequest {
        self.inner().map_or_else(AttentionRequest::nothing, |inner| inner.observes())
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) with the parameter's name and
    /// value.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it reads a [`Profile`](crate::Profile) of the model.
    fn reads_profile(&self) -> bool {
        self.inner().is_some_and(|inner| inner.reads_profile())
    }

    /// Whether it reads the model's [output projections](crate::CacheConfig::with_output_weights).
    fn reads_output_weights(&self) -> bool {
        self.inner().is_some_and(|inner| inner.reads_output_weights())
    }

    /// Whether every decode step launches the same kernels without reading from the device, so that
    /// it can be captured and replayed.
    fn is_capturable(&self) -> bool {
        false
    }

    /// Whether [`score`](Self::score) accepts entries in any order in a decode step, each with its
    /// own position. A policy with such a scorer can [decode in place](crate::store::SlotStore).
    fn ignores_order(&self) -> bool {
        false
    }

    /// Whether [`score`](Self::score) depends, in a decode step, on the [budget](LayerView::budget)
    /// or on the numbers of tokens [held](LayerView::held) or [seen](LayerView::seen). Steps of
    /// such a scorer are not recorded under a budget that grows with the tokens seen.
    fn reads_budget(&self) -> bool {
        true
    }

    /// Whether it reads keys or values, besides positions and statistics.
    fn reads_rows(&self) -> bool {
        true
    }

    /// Returns the scorer with another window of queries, for
    /// [`Policy::with_window`](crate::Policy::with_window); `None` if it has no window.
    fn with_window(&self, _window: usize) -> Option<Arc<dyn Scorer>> {
        None
    }

    /// Returns the scorer with another pooling, for
    /// [`Policy::with_pool`](crate::Policy::with_pool); `None` if it does not pool.
    fn with_pool(&self, _pool: Pool) -> Option<Arc<dyn Scorer>> {
        None
    }

    /// Scores every entry: `[batch, kv_heads, entries]`, f32. Values at padding do not matter.
    ///
    /// # Errors
    /// Any error of the scorer; the cache stays as it was.
    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>>;
}
