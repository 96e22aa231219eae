use serde::{Deserialize, Serialize};

use crate::{Error, Result};

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

    /// Checks that no dimension is zero and that the query heads divide into the kv heads.
    ///
    /// # Errors
    /// [`Error::InvalidShape`].
    pub fn check(&self) -> Result<()> {
        let Self { layers, query_heads, kv_heads, head_dim } = *self;
        let reason = if layers == 0 || query_heads == 0 || kv_heads == 0 || head_dim == 0 {
            "every dimension must be at least 1"
        } else if query_heads % kv_heads != 0 {
            "query_heads must be a multiple of kv_heads"
        } else {
            return Ok(());
        };
        Err(Error::InvalidShape { shape: *self, reason })
    }
}
