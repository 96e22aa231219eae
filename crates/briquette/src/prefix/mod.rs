//! Prefixes that are kept: the file form of a [`KvCache`](crate::KvCache), which
//! [`KvCache::save`](crate::KvCache::save) writes and [`KvCache::load`](crate::KvCache::load)
//! reads.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        clippy::indexing_slicing,
        clippy::string_slice
    )
)]

mod container;
mod error;
pub(crate) mod file;
mod header;
mod parts;

pub use error::PrefixError;
pub(crate) use header::{Header, fingerprint};
pub use parts::Parts;
