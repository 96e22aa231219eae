//! Stage four: how the entries of a layer lie in memory.

mod codec;
mod dense;
mod interface;
mod layout;
mod packed;
mod paged;
mod quantized;
mod ragged;
mod segmented;
mod shared;
mod spec;
mod tokens;

pub(crate) use dense::attend_entries;
pub use dense::{Dense, DenseStore};
pub use interface::{Store, StoreBuilder, StoreOptions, StoreQuery};
pub use quantized::Quantized;
pub use ragged::Ragged;
pub use shared::Shared;
pub(crate) use spec::StoreSpec;

pub use crate::{position::Encode, prefix::Parts};
