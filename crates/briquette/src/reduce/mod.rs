//! Stage three: what becomes of the entries that are not kept.

mod ema_merge;
mod evict;
mod evict_then_merge;
mod gaussian_merge;
mod host;
mod split;
mod value_merge;

use std::fmt::Debug;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

pub use ema_merge::EmaMerge;
pub use evict::Evict;
pub use evict_then_merge::{EvictThenMerge, Rotate};
pub use gaussian_merge::{GaussianMerge, Sigma};
pub use value_merge::ValueMerge;

use crate::{
    Budget, CacheShape, Error, Result,
    cache::Entries,
    ops::{OpError, Ops, SelectInput, Selection, Split},
    policy::Protect,
    score::Observes,
};

/// Reduces the entries of a layer to the ones that may stay, evicting or merging the rest.
pub trait Reducer: Debug + Send + Sync {
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

    /// Checks that it can reach a budget, with what is protected.
    ///
    /// # Errors
    /// [`Error::MergeBudget`](crate::Error::MergeBudget) or
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check_budget(&self, budget: Budget, protect: Protect) -> Result<()> {
        let _ = (budget, protect);
        Ok(())
    }

    /// What the attention pass must report for it, besides what scorer and allocator want.
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Whether dropping entries in two steps is the same as dropping them in one: true of eviction, not of merging.
    fn drops_only(&self) -> bool {
        false
    }

    /// Whether heads of a layer may end with different numbers of entries.
    fn makes_ragged_heads(&self) -> bool {
        false
    }

    /// Whether tokens share keys and values in what it returns.
    fn makes_shared_entries(&self) -> bool {
        false
    }

    /// The most columns, one a token, that are left of a head that keeps `entries`: more where tokens share.
    fn columns(&self, entries: usize) -> usize {
        entries
    }

    /// Whether the keys of tokens that share one are encoded at the position of their center.
    fn encodes_at_center(&self) -> bool {
        false
    }

    /// What remains of the entries.
    ///
    /// # Errors
    /// Whatever keeps the reducer from reducing; the cache is then left as it was.
    fn reduce(&self, input: ReduceInput<'_>) -> Result<Reduced>;
}

/// What a reducer works on.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReduceInput<'a> {
    /// The layer.
    pub layer: usize,
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// All entries held.
    pub entries: Entries,
    /// How many of them are held, one number a batch row and kv head, rows first: the last columns.
    pub held: &'a [usize],
    /// How many may stay, one number a batch row and kv head, rows first.
    pub keep: &'a [usize],
    /// What is kept whatever the scores.
    pub protect: Protect,
    /// Whether tokens of a prompt have just arrived; false in decoding.
    pub prompt: bool,
    /// Whether NaN is looked for among the scores, see [`SelectInput::check`].
    pub check: bool,
    /// The scores, `[batch, kv_heads, entries]`, f32.
    pub scores: &'a Tensor<3>,
    /// What the reducer returned as its state when it last ran in this layer, `[batch, numbers]`.
    pub state: Option<&'a Tensor<2>>,
    /// Whether what is left may begin with more fillers than its longest head needs: the store packs heads.
    pub rounds: bool,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

/// What a reducer leaves.
#[derive(Debug)]
pub struct Reduced {
    /// The entries that remain; heads that hold fewer than the widest begin with fillers at position −1.
    pub entries: Entries,
    /// How many each batch row and kv head holds, rows first; where tokens share how many it may hold, of which the first
    /// may be fillers.
    pub counts: Vec<usize>,
    /// What the reducer is given when it runs again in this layer, `[batch, numbers]`.
    pub state: Option<Tensor<2>>,
}

impl ReduceInput<'_> {
    /// The entries to keep: the protected ones, then the highest scores.
    ///
    /// # Errors
    /// What [`Ops::select`] returns.
    pub fn select(&self) -> Result<Selection> {
        self.with_selection(|selection| self.ops.select(selection))
    }

    /// [`select`](Self::select), and the entries that are not kept.
    ///
    /// # Errors
    /// What [`Ops::split`] returns.
    pub fn split(&self) -> Result<Split> {
        self.with_selection(|selection| self.ops.split(selection))
    }

    fn with_selection<T>(
        &self,
        run: impl FnOnce(SelectInput<'_>) -> std::result::Result<T, OpError>,
    ) -> Result<T> {
        let recent: Vec<usize> =
            self.keep.iter().map(|&keep| self.protect.recent.tokens(keep)).collect();
        let selected = run(SelectInput {
            scores: self.scores,
            held: self.held,
            keep: self.keep,
            sinks: self.protect.sinks,
            recent: &recent,
            check: self.check,
        });
        selected.map_err(|error| Error::of_layer(error, self.layer))
    }
}

/// The reducers that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ReducerSpec {
    /// [`Evict`]
    Evict(Evict),
    /// [`ValueMerge`]
    ValueMerge(ValueMerge),
    /// [`GaussianMerge`]
    GaussianMerge(GaussianMerge),
    /// [`EmaMerge`]
    EmaMerge(EmaMerge),
    /// [`EvictThenMerge`]
    EvictThenMerge(EvictThenMerge),
}

impl Default for ReducerSpec {
    fn default() -> Self {
        Self::Evict(Evict {})
    }
}

impl ReducerSpec {
    /// The reducer it describes.
    pub fn reducer(&self) -> &dyn Reducer {
        match self {
            Self::Evict(reducer) => reducer,
            Self::ValueMerge(reducer) => reducer,
            Self::GaussianMerge(reducer) => reducer,
            Self::EmaMerge(reducer) => reducer,
            Self::EvictThenMerge(reducer) => reducer,
        }
    }
}

macro_rules! specs {
    ($($reducer:ident),*) => {$(
        impl From<$reducer> for ReducerSpec {
            fn from(reducer: $reducer) -> Self {
                Self::$reducer(reducer)
            }
        }
    )*};
}
specs!(Evict, ValueMerge, GaussianMerge, EmaMerge, EvictThenMerge);
