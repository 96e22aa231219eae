//! Stage one: the importance of each held entry.
//!
//! A scorer says what it observes ([`Observes`]); the attention pass computes just that, and no matrix of
//! queries by keys is kept. Nothing here knows how the rest is reduced.

mod accumulated;
mod global_local;
mod moments;
mod recency;
mod retrieval;
mod robust;
mod variance;
mod window;

use std::fmt::Debug;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

pub use accumulated::{AccumulatedAttention, Normalize};
pub use global_local::GlobalLocal;
pub use moments::{Wanted, WindowMoments};
pub use crate::ops::{Pool, PoolKind};
pub use recency::Recency;
pub use retrieval::{Pick, RetrievalHeads};
pub use robust::RobustAttention;
pub use variance::WindowVariance;
pub use window::{HeadMean, WindowAttention};

use crate::{
    CacheShape, Error, Profile, Result,
    cache::{Entries, LastQueries, Track, Tracks},
    ops::{Ops, group_mean, laid_out},
};

/// Scores the entries of a layer; the highest are kept longest.
pub trait Scorer: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// What the attention pass must report for [`score`](Self::score).
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] with the parameter's name and value.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether it reads a [`Profile`] of the model.
    fn reads_profile(&self) -> bool {
        false
    }

    /// Scores every entry: `[batch, kv_heads, entries]`, f32. What stands at padding does not matter.
    ///
    /// # Errors
    /// Whatever keeps the scorer from scoring; the cache is then left as it was.
    fn score(&self, input: &ScoreInput<'_>) -> Result<Tensor<3>>;
}

/// What a stage wants the attention pass to report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observes {
    /// For each entry, the sum of its attention weights over all queries since it was written.
    pub column_sums: bool,
    /// For each entry, the sum of their squares.
    pub column_squares: bool,
    /// The attention weights of the last so many queries.
    pub window: usize,
    /// For each entry, the sum of its weights over the window of so many queries before this one, and over this
    /// one so far; at the end of a prompt over its last so many queries. Brings the column sums with it.
    pub local: usize,
    /// Whether sums are held for each query head or for each kv head, where they are the mean of its group.
    pub heads: ObservedHeads,
}

/// The heads sums are held for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObservedHeads {
    /// The mean over the query heads that share a kv head.
    #[default]
    Kv,
    /// Each query head.
    Query,
}

impl Observes {
    /// Nothing: the stage looks at keys, values or positions only.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Sums over all queries, the mean of a group.
    pub fn column_sums() -> Self {
        Self { column_sums: true, ..Self::default() }
    }

    /// Sums over all queries, each query head.
    pub fn column_sums_of_query_heads() -> Self {
        Self { heads: ObservedHeads::Query, ..Self::column_sums() }
    }

    /// Sums and sums of squares over all queries, each query head.
    pub fn moments() -> Self {
        Self { column_squares: true, ..Self::column_sums_of_query_heads() }
    }

    /// The weights of the last `queries` queries.
    pub fn window(queries: usize) -> Self {
        Self { window: queries, ..Self::default() }
    }

    /// Sums over all queries and over a moving window of so many, the mean of a group.
    pub fn local(queries: usize) -> Self {
        Self { local: queries, ..Self::default() }
    }

    /// What two stages want.
    pub fn and(self, other: Self) -> Self {
        Self {
            column_sums: self.column_sums || other.column_sums,
            column_squares: self.column_squares || other.column_squares,
            window: self.window.max(other.window),
            local: self.local.max(other.local),
            heads: self.heads.max(other.heads),
        }
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
    /// The policy's budget in tokens a layer, one number a batch row.
    pub budget: &'a [usize],
    /// Entries held, one number a batch row and kv head, rows first: the last columns.
    pub held: &'a [usize],
    /// The entries as they are held.
    pub(crate) entries: &'a Entries,
    /// The position each entry was written at, ascending, `[batch, kv_heads, entries]`; −1 is padding.
    pub positions: &'a Tensor<3, Int>,
    /// What has been counted of each entry.
    pub tracks: &'a Tracks,
    /// With [`Observes::window`]: the last queries.
    pub(crate) window: Option<&'a LastQueries<'a>>,
    /// How many queries of the window are a row's own, one number a batch row.
    pub window_queries: &'a [usize],
    /// Whether heads of the layer may hold different tokens in the same column.
    pub heads_differ: bool,
    /// The profile of the model, if the policy has one.
    pub profile: Option<&'a Profile>,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

impl ScoreInput<'_> {
    /// Keys as they are held, `[batch, kv_heads, entries, head_dim]`; laid out in this call where tokens share them.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input.
    pub fn keys(&self) -> Result<Tensor<4>> {
        Ok(laid_out(self.entries.clone(), self.ops)?.keys)
    }

    /// Values, `[batch, kv_heads, entries, head_dim]`; laid out in this call where tokens share them.
    ///
    /// # Errors
    /// [`Error::Operation`] if an operation refused its input.
    pub fn values(&self) -> Result<Tensor<4>> {
        Ok(laid_out(self.entries.clone(), self.ops)?.values)
    }

    /// What has been counted, `[batch, heads, entries]`, f32.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes it.
    pub fn track(&self, track: Track, stage: &str) -> Result<&Tensor<3>> {
        self.tracks.get(track).ok_or_else(|| missing_observation(stage, &format!("{track:?}")))
    }

    /// The weights of the last `queries` queries, `[batch, query_heads, queries, entries]`, f32, the last query last,
    /// and how many of them are a row's own. Fewer queries if fewer have been seen, zero where a query was padding.
    ///
    /// They are computed and held for this call: where sums over the queries do, [`moments`](Self::moments) is faster.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes a window.
    pub fn last_queries(&self, queries: usize, stage: &str) -> Result<(Tensor<4>, Vec<usize>)> {
        let window = self.window.ok_or_else(|| missing_observation(stage, "window"))?;
        let weights = window.weights()?;
        let all = weights.dims()[2];
        let kept = queries.min(all);
        let own = self.window_queries.iter().map(|&own| own.min(kept)).collect();
        Ok((weights.clone().narrow(2, all - kept, kept), own))
    }

    /// Sums over the last `queries` queries of what their weights are; fewer queries if fewer have been seen.
    ///
    /// # Errors
    /// [`Error::Stage`] if the stage did not say that it observes a window.
    pub fn moments(&self, queries: usize, wanted: Wanted, stage: &str) -> Result<WindowMoments> {
        let window = self.window.ok_or_else(|| missing_observation(stage, "window"))?;
        window.moments(queries, self.window_queries, wanted)
    }

    /// The mean over the query heads that share a kv head: `[batch, query_heads, entries]` becomes
    /// `[batch, kv_heads, entries]`. What is counted for kv heads already is unchanged.
    pub fn group_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        group_mean(scores, self.shape.kv_heads)
    }

    /// The mean over all heads of `scores`, query heads or kv heads, the same for every kv head:
    /// `[batch, heads, entries]` becomes `[batch, kv_heads, entries]`. Where kv heads hold different tokens it is taken
    /// token by token, and a head gives nothing to a token it does not hold.
    pub fn layer_mean(&self, scores: Tensor<3>) -> Tensor<3> {
        let all: Vec<usize> = (0..scores.dims()[1]).collect();
        self.mean_of(scores, &all)
    }

    /// The same over some of the heads of `scores`.
    pub fn mean_of(&self, scores: Tensor<3>, heads: &[usize]) -> Tensor<3> {
        let [batch, all, entries] = scores.dims();
        let CacheShape { kv_heads, .. } = self.shape;
        let device = scores.device();
        let pick = |list: Vec<usize>| {
            let list: Vec<i64> = list.into_iter().map(|index| index as i64).collect();
            let length = list.len();
            Tensor::<1, Int>::from_data(TensorData::new(list, [length]), &device)
        };
        let scores = scores.select(1, pick(heads.to_vec()));
        if !self.heads_differ {
            return scores.mean_dim(1).expand([batch, kv_heads, entries]);
        }
        let kv_head = pick(heads.iter().map(|head| head * kv_heads / all).collect());
        let written = self.positions.clone().greater_equal_scalar(0);
        let positions = self.positions.clone().clamp_min(0);
        let scores = scores.mask_fill(written.select(1, kv_head.clone()).bool_not(), 0.0);
        let seen = self.seen.iter().copied().max().unwrap_or(0);
        let none = Tensor::zeros([batch, heads.len(), seen], (&device, DType::F32));
        let tokens = positions.clone().select(1, kv_head);
        let of_tokens = none.scatter(2, tokens, scores, IndexingUpdateOp::Add);
        of_tokens.mean_dim(1).expand([batch, kv_heads, seen]).gather(2, positions)
    }

    /// The policy's profile.
    ///
    /// # Errors
    /// [`Error::Stage`] if there is none.
    pub fn profile(&self, stage: &str) -> Result<&Profile> {
        self.profile.ok_or_else(|| missing_observation(stage, "profile"))
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
    /// [`RobustAttention`]
    RobustAttention(RobustAttention),
    /// [`WindowAttention`]
    WindowAttention(WindowAttention),
    /// [`WindowVariance`]
    WindowVariance(WindowVariance),
    /// [`GlobalLocal`]
    GlobalLocal(GlobalLocal),
}

impl ScorerSpec {
    /// The scorer it describes.
    pub fn scorer(&self) -> &dyn Scorer {
        match self {
            Self::Recency(scorer) => scorer,
            Self::AccumulatedAttention(scorer) => scorer,
            Self::RobustAttention(scorer) => scorer,
            Self::WindowAttention(scorer) => scorer,
            Self::WindowVariance(scorer) => scorer,
            Self::GlobalLocal(scorer) => scorer,
        }
    }
}

macro_rules! specs {
    ($($scorer:ident),*) => {$(
        impl From<$scorer> for ScorerSpec {
            fn from(scorer: $scorer) -> Self {
                Self::$scorer(scorer)
            }
        }
    )*};
}
specs!(
    Recency,
    AccumulatedAttention,
    RobustAttention,
    WindowAttention,
    WindowVariance,
    GlobalLocal
);

/// The error of a stage called without what it asked to observe.
fn missing_observation(stage: &str, what: &str) -> Error {
    Error::Stage {
        stage: "stage",
        name: stage.to_owned(),
        reason: format!("was called without its {what}"),
    }
}
