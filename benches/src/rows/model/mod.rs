//! The model around a cache.

pub mod linear;
