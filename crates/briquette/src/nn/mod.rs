//! Attention modules of Burn, decoding through a cache.
//!
//! Give them new tokens alone: what came before is in the cache. [`CachedAttention`] is for
//! [`MultiHeadAttention`](burn::nn::attention::MultiHeadAttention), [`CachedEncoder`] for
//! [`TransformerEncoder`](burn::nn::transformer::TransformerEncoder).

mod attention;
mod encoder;

pub use attention::CachedAttention;
pub use encoder::CachedEncoder;
