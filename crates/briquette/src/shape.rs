use burn::tensor::DType;
use serde::{Deserialize, Serialize};

/// Dimensions of a model that its KV cache depends on. They stay these four: what else a model may
/// say is in [`CacheConfig`](crate::CacheConfig).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheShape {
    /// Number of decoder layers.
    pub layers: usize,
    /// Number of query heads per layer.
    pub query_heads: usize,
    /// Number of key-value heads per layer: equal to `query_heads` for multi-head attention, 1 for
    /// multi-query attention, a divisor of `query_heads` for grouped-query attention.
    pub kv_heads: usize,
    /// Number of channels per head.
    pub head_dim: usize,
}

impl CacheShape {
    /// Number of query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// Bytes of the keys and values of a token in all layers, in this data type; `usize::MAX` for a
    /// shape that has more.
    pub fn token_bytes(&self, dtype: DType) -> usize {
        let Self { layers, kv_heads, head_dim, .. } = *self;
        [2, layers, kv_heads, head_dim, dtype.size()].into_iter().fold(1, usize::saturating_mul)
    }
}
