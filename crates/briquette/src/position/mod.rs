//! Position encodings, applied by the cache.
//!
//! A policy may re-count positions inside the cache, or compare keys before they are rotated. So
//! the model hands over queries and keys *before* their positions are encoded, and the cache
//! encodes them. The encoding is [`RotaryEmbedding`], Burn's own
//! [`RotaryEncoding`](burn::nn::RotaryEncoding), or any other [`PositionEncoding`].
//!
//! A model that keeps its own rotation gives [`Rotated`]. For policies that need keys before their
//! rotation it says [how it rotates](Rotated::by), and the cache turns them back.

mod behind;
mod burn_rotary;
mod encoding;
mod rotary;
mod rotated;

pub(crate) use behind::behind;
pub use encoding::{Encode, NoPositionEncoding, PositionEncoding, RotatedBy};
pub(crate) use encoding::{decode, encode, encode_both, encode_queries, mean_rotation};
pub use rotary::RotaryEmbedding;
pub use rotated::Rotated;
