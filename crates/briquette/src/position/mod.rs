//! Position encodings, applied by the cache.
//!
//! A policy may re-count positions inside the cache, or compare keys before they are rotated, so the
//! model hands over queries and keys *before* their positions are encoded and the cache encodes them.

mod encoding;
mod rotary;

pub(crate) use encoding::encode;
pub use encoding::{Encode, NoPositionEncoding, PositionEncoding};
pub use rotary::RotaryEmbedding;
