//! Stage three: what becomes of the entries that are not kept.

mod evict;

use std::fmt::Debug;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

pub use evict::Evict;

use crate::{
    Result,
    cache::Entries,
    ops::{Ops, Selection},
};

/// Reduces the entries of a layer to the selected ones, evicting or merging the rest.
pub trait Reducer: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The entries that remain: as many columns as the selection is wide.
    ///
    /// # Errors
    /// Whatever keeps the reducer from reducing; the cache is then left as it was.
    fn reduce(&self, input: ReduceInput<'_>) -> Result<Entries>;
}

/// What a reducer works on.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReduceInput<'a> {
    /// The layer.
    pub layer: usize,
    /// All entries held.
    pub entries: Entries,
    /// Those to keep.
    pub selection: &'a Selection,
    /// The scores they were selected by, `[batch, kv_heads, entries]`.
    pub scores: &'a Tensor<3>,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

/// The reducers that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ReducerSpec {
    /// [`Evict`]
    Evict(Evict),
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
        }
    }
}
