//! KV-cache compression for transformer models written in [Burn](https://burn.dev).
//!
//! A model author swaps the model's KV cache for a [`KvCache`] and names a [`Policy`]. The model
//! then holds many times the context in the same memory, on every Burn backend.
//!
//! ```
//! use briquette::{Budget, CacheShape, KvCache, Policy, position::RotaryEmbedding};
//! use burn::tensor::{Distribution, Tensor};
//!
//! # fn main() -> briquette::Result<()> {
//! let device = briquette::device::open("flex")?;
//! let shape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 8 };
//! let mut cache = KvCache::new(shape, Policy::snapkv(Budget::Tokens(48)), &device)?;
//! let rope = RotaryEmbedding::new(8, 1024, 10_000.0, &device)?;
//!
//! // In the attention module, where the model had append, mask, softmax and matmul:
//! let normal = Distribution::Normal(0.0, 1.0);
//! let q = Tensor::<4>::random([1, 4, 100, 8], normal, &device);
//! let k = Tensor::<4>::random([1, 2, 100, 8], normal, &device);
//! let v = Tensor::<4>::random([1, 2, 100, 8], normal, &device);
//! for layer in 0..2 {
//!     let out = cache.attend(layer, q.clone(), k.clone(), v.clone(), &rope)?;
//!     assert_eq!(out.dims(), [1, 4, 100, 8]);
//! }
//! assert_eq!(cache.tokens_seen(), [100]);
//! assert_eq!(cache.tokens_kept(0)?, [48]);
//! # Ok(())
//! # }
//! ```
//!
//! # How it is built
//!
//! Every method is one composition of four stages, and data flows one way:
//!
//! ```text
//! model → KvCache::attend → append → attend → output → model
//!                                       ↓
//!                        score → allocate → reduce → store
//! ```
//!
//! - [`score`]: the importance of each entry, `[batch, kv_heads, entries]`;
//! - [`allocate`]: how many entries each layer or head keeps;
//! - [`reduce`]: evicting or merging the others;
//! - [`store`]: the layout of the kept entries in memory.
//!
//! The first three are lent a [`LayerView`] in turn. A [`Policy`] composes them. [`ops`] holds the
//! hot operations they share, behind one trait.

pub mod allocate;
mod budget;
mod cache;
mod check;
mod columns;
pub mod device;
pub mod diagnose;
mod error;
#[doc(hidden)]
pub mod files;
mod head_patterns;
#[doc(hidden)]
pub mod nearest;
pub mod nn;
pub mod ops;
#[doc(hidden)]
pub mod parse;
pub mod policy;
pub mod position;
pub mod prefix;
mod profile;
mod query_statistics;
pub mod reduce;
mod rows;
pub mod score;
mod shape;
mod stage;
pub mod state;
pub mod store;
mod upkeep;
mod view;

pub use budget::Budget;
pub use cache::{
    CacheConfig, CacheLayer, InputCheck, KvCache, Prompt, Reconstruction, RecurrentShape,
    RecurrentState, SharedPrefill, SharedTimes, VisibleEntries, WarmUp,
};
pub use error::{Error, Result};
pub use policy::{
    methods::methods,
    policy::Policy,
    schedule::{PrefillCompression, Schedule},
    sparse_prefill::SparsePrefill,
};
pub use prefix::file::Prefix;
pub use profile::{HeadScoreKind, HeadScores, Profile};
pub use query_statistics::QueryStatistics;
pub use shape::{CacheShape, LayerShape};
pub use view::LayerView;
