//! The model around a cache.

pub mod linear;
pub(crate) mod quantized_linear;
