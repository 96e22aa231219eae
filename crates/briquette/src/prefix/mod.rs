//! Prefixes that are kept: the file form of a [`KvCache`](crate::KvCache), which [`KvCache::save`](crate::KvCache::save)
//! writes and [`KvCache::load`](crate::KvCache::load) reads.

mod container;
mod error;
mod file;
mod header;
mod parts;

pub use error::PrefixError;
pub use file::Prefix;
pub(crate) use header::{Header, fingerprint};
pub use parts::Parts;
