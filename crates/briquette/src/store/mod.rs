//! Stage four: the layout of a layer's entries in memory.

mod buffer;
mod channels;
mod clustered;
mod codec;
mod dense;
mod fp8;
mod interface;
mod join;
mod key_channels;
mod layout;
mod packed;
mod page_table;
mod page_tail;
mod paged;
mod pages;
mod quantized;
mod ragged;
mod replay;
mod rotation;
mod segmented;
mod slots;
mod spec;
mod tokens;
mod turbo_quant;

pub use clustered::Clustered;
pub use dense::{Dense, DenseStore};
pub use fp8::Fp8;
pub(crate) use interface::attend_entries;
pub use interface::{Store, StoreBuilder, StoreOptions, StoreQuery};
pub use key_channels::KeyChannels;
pub use quantized::Quantized;
pub use ragged::Ragged;
pub use replay::ReplayStore;
pub use slots::{Eviction, SlotStore};
pub(crate) use spec::StoreSpec;
pub use turbo_quant::TurboQuant;
