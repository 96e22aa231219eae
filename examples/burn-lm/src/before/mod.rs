//! The attention of burn-lm with a cache of its own.

pub(crate) mod attention;
pub(crate) mod cache;
