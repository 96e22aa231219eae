use serde::{Deserialize, Serialize};

/// The dimensions of a model that its KV cache depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct CacheShape {
    /// Decoder layers.
    pub layers: usize,
    /// Query heads a layer.
    pub query_heads: usize,
    /// Key-value heads a layer: equal to `query_heads` for multi-head attention, 1 for
    /// multi-query attention, a divisor of `query_heads` for grouped-query attention.
    pub kv_heads: usize,
    /// Channels a head.
    pub head_dim: usize,
}

impl CacheShape {
    /// Query heads that share one key-value head.
    pub fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }
}
