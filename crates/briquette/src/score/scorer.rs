use std::{any::Any, fmt::Debug, sync::Arc};

use burn::tensor::Tensor;

use super::dependencies::Dependencies;
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

    /// Returns what [`score`](Self::score) depends on in a decode step: by default all.
    fn depends_on(&self) -> Dependencies {
        Dependencies::all()
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
