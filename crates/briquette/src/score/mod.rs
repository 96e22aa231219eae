//! Stage one: the importance of each held entry.
//!
//! A scorer says what it observes ([`Observes`]); the attention pass computes just that, and no matrix of
//! queries by keys is kept. Nothing here knows how the rest is reduced.

mod accumulated;
mod pool;
mod recency;
mod window;

use std::fmt::Debug;

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};

pub use accumulated::{AccumulatedAttention, Normalize};
pub use pool::{Pool, PoolKind};
pub use recency::Recency;
pub use window::{HeadMean, WindowAttention};

use crate::{CacheShape, Result};

/// Scores the entries of a layer; the highest are kept longest.
pub trait Scorer: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// What the attention pass must report for [`score`](Self::score).
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) with the parameter's name and value.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Scores every entry: `[batch, kv_heads, entries]`, f32. What stands at padding does not matter.
    ///
    /// # Errors
    /// Whatever keeps the scorer from scoring; the cache is then left as it was.
    fn score(&self, input: &ScoreInput<'_>) -> Result<Tensor<3>>;
}

/// What a scorer wants the attention pass to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observes {
    /// For each entry, the sum of its attention weights over all queries since it was written.
    pub column_sums: bool,
    /// The attention weights of the last so many queries.
    pub window: usize,
}

impl Observes {
    /// Nothing: the scorer looks at keys, values or positions only.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Sums over all queries.
    pub fn column_sums() -> Self {
        Self { column_sums: true, ..Self::default() }
    }

    /// The weights of the last `queries` queries.
    pub fn window(queries: usize) -> Self {
        Self { window: queries, ..Self::default() }
    }
}

/// What a scorer sees of a layer.
#[derive(Debug)]
#[non_exhaustive]
pub struct ScoreInput<'a> {
    /// The layer.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// Tokens seen, one number a batch row, padding not counted.
    pub seen: &'a [usize],
    /// Keys as they are held, `[batch, kv_heads, entries, head_dim]`, in the cache's type.
    pub keys: &'a Tensor<4>,
    /// Values, `[batch, kv_heads, entries, head_dim]`, in the cache's type.
    pub values: &'a Tensor<4>,
    /// The position each entry was written at, ascending, `[batch, kv_heads, entries]`; −1 is padding.
    pub positions: &'a Tensor<3, Int>,
    /// With [`Observes::column_sums`]: `[batch, query_heads, entries]`, f32.
    pub column_sums: Option<&'a Tensor<3>>,
    /// With [`Observes::window`]: `[batch, query_heads, queries, entries]`, f32, the last query last;
    /// fewer queries than asked for if fewer have been seen, zero where a query was padding.
    pub window: Option<&'a Tensor<4>>,
}

impl ScoreInput<'_> {
    /// The mean over the query heads that share a kv head: `[batch, query_heads, entries]` becomes
    /// `[batch, kv_heads, entries]`.
    pub fn group_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        let [batch, _, entries] = scores.dims();
        let CacheShape { kv_heads, .. } = self.shape;
        if self.shape.group() == 1 {
            return scores;
        }
        scores
            .reshape([batch, kv_heads, self.shape.group(), entries])
            .mean_dim(2)
            .reshape([batch, kv_heads, entries])
    }

    /// The mean over all query heads, the same for every kv head: `[batch, query_heads, entries]` becomes
    /// `[batch, kv_heads, entries]`.
    pub fn layer_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        let [batch, _, entries] = scores.dims();
        scores.mean_dim(1).expand([batch, self.shape.kv_heads, entries])
    }
}

/// The scorers that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ScorerSpec {
    /// [`Recency`]
    Recency(Recency),
    /// [`AccumulatedAttention`]
    AccumulatedAttention(AccumulatedAttention),
    /// [`WindowAttention`]
    WindowAttention(WindowAttention),
}

impl ScorerSpec {
    /// The scorer it describes.
    pub fn scorer(&self) -> &dyn Scorer {
        match self {
            Self::Recency(scorer) => scorer,
            Self::AccumulatedAttention(scorer) => scorer,
            Self::WindowAttention(scorer) => scorer,
        }
    }
}

/// The error of a scorer called without what it asked to observe.
fn missing_observation(scorer: &str, what: &str) -> crate::Error {
    crate::Error::Stage {
        stage: "scorer",
        name: scorer.to_owned(),
        reason: format!("was called without its {what}"),
    }
}
