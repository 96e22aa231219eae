//! Stage four: how the entries of a layer lie in memory.

pub(crate) mod dense;

use std::fmt::Debug;

use burn::tensor::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

pub use dense::{Dense, DenseStore};

use super::Entries;
use crate::{
    CacheShape,
    ops::{AttentionOutput, Ops, Visibility},
    position::PositionEncoding,
};
use burn::tensor::Int;

/// Makes the store of a layer.
pub trait StoreBuilder: Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// An empty store. Nothing is allocated on the device before the first entry.
    fn build(&self, options: StoreOptions) -> Box<dyn Store>;
}

/// What a store is made for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// The dimensions of the cache.
    pub shape: CacheShape,
    /// Batch rows.
    pub batch: usize,
    /// The type keys and values are held in.
    pub dtype: DType,
    /// Whether each entry carries the weight it has received.
    pub column_sums: bool,
    /// Where the entries live.
    pub device: Device,
}

/// Holds the entries of one layer.
pub trait Store: Debug + Send + Sync {
    /// Columns held.
    fn columns(&self) -> usize;

    /// Columns there is room for.
    fn capacity(&self) -> usize;

    /// Bytes its buffers take on the device.
    fn bytes(&self) -> usize;

    /// Bytes one more column takes.
    fn bytes_per_column(&self) -> usize;

    /// Makes room for `capacity` columns in all, if there is less.
    fn reserve(&mut self, capacity: usize);

    /// Writes new columns behind those held, into room made before where there is any.
    fn append(&mut self, entries: Entries);

    /// Drops the columns behind the first `columns`: undoes an [`append`](Self::append).
    fn truncate(&mut self, columns: usize);

    /// The entries held.
    fn entries(&self) -> Entries;

    /// Attention of new queries over the entries held. The last columns are the queries' own.
    fn attend(&self, input: StoreQuery<'_>) -> AttentionOutput;

    /// Replaces the weight each entry has received, `[batch, query_heads, columns]`.
    fn set_column_sums(&mut self, sums: Tensor<3>);

    /// Replaces all entries, with room for at most `capacity` columns.
    fn replace(&mut self, entries: Entries, capacity: usize);

    /// A copy that shares its tensors until either is written to.
    fn boxed_clone(&self) -> Box<dyn Store>;
}

impl Clone for Box<dyn Store> {
    fn clone(&self) -> Self {
        self.boxed_clone()
    }
}

/// What [`Store::attend`] works on.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoreQuery<'a> {
    /// Queries, positions encoded, `[batch, query_heads, new, head_dim]`.
    pub queries: Tensor<4>,
    /// Which entry each query may see.
    pub visibility: Visibility,
    /// How to encode the keys, if they are held as they came.
    pub encode: Option<Encode<'a>>,
    /// What scores are multiplied by before the softmax.
    pub scale: f64,
    /// Whether column sums are wanted.
    pub column_sums: bool,
    /// The hot operations.
    pub ops: &'a dyn Ops,
}

/// The encoding of keys that are held as they came.
#[derive(Clone, Debug)]
pub struct Encode<'a> {
    /// The encoding.
    pub encoding: &'a dyn PositionEncoding,
    /// At which position each entry is encoded, `[batch, kv_heads or 1, entries]`.
    pub positions: Tensor<3, Int>,
}

impl Encode<'_> {
    /// The keys, encoded if they are held as they came.
    pub(crate) fn keys(encode: Option<&Self>, keys: Tensor<4>) -> Tensor<4> {
        match encode {
            None => keys,
            Some(encode) => encode.encoding.encode(keys, encode.positions.clone()),
        }
    }
}

/// The stores that have a file form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StoreSpec {
    /// [`Dense`]
    Dense(Dense),
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self::Dense(Dense {})
    }
}

impl StoreSpec {
    fn builder(&self) -> &dyn StoreBuilder {
        match self {
            Self::Dense(builder) => builder,
        }
    }
}

impl StoreBuilder for StoreSpec {
    fn name(&self) -> &str {
        self.builder().name()
    }

    fn build(&self, options: StoreOptions) -> Box<dyn Store> {
        self.builder().build(options)
    }
}
