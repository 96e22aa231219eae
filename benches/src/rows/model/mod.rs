//! The model around a cache.

pub(super) mod linear;
