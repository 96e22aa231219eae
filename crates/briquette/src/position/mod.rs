//! Position encodings, applied by the cache.
//!
//! A policy may re-count positions inside the cache, or compare keys before they are rotated, so the
//! model hands over queries and keys *before* their positions are encoded and the cache encodes them.

mod encoding;
mod rotary;

pub use encoding::{Encode, NoPositionEncoding, PositionEncoding};
pub(crate) use encoding::{encode, mean_rotation};
pub use rotary::RotaryEmbedding;
