use std::{any::Any, fmt::Debug, sync::Arc};

use burn::tensor::Tensor;

use crate::{LayerView, Result, observes::Observes, ops::Pool};

/// Scores the entries of a layer; the highest are kept longest.
pub trait Scorer: Any + Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Reports wanted of the attention pass for [`score`](Self::score).
    fn observes(&self) -> Observes {
        Observes::nothing()
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
        false
    }

    /// Whether it reads the model's [output projections](crate::CacheConfig::with_output_weights).
    fn reads_output_weights(&self) -> bool {
        false
    }

    /// Whether every decode step launches the same kernels without reading from the device, so that
    /// it can be captured and replayed.
    fn is_capturable(&self) -> bool {
        false
    }

    /// The same scorer with another window of queries, for
    /// [`Policy::with_window`](crate::Policy::with_window); `None` if it has no window.
    fn with_window(&self, _window: usize) -> Option<Arc<dyn Scorer>> {
        None
    }

    /// The same scorer with another pooling, for [`Policy::with_pool`](crate::Policy::with_pool);
    /// `None` if it cannot pool.
    fn with_pool(&self, _pool: Pool) -> Option<Arc<dyn Scorer>> {
        None
    }

    /// Scores every entry: `[batch, kv_heads, entries]`, f32. What stands at padding does not
    /// matter.
    ///
    /// # Errors
    /// Whatever keeps the scorer from scoring; the cache is then left as it was.
    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>>;
}
