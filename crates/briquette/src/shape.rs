use burn::tensor::DType;
use serde::{Deserialize, Serialize};

/// Dimensions of a model that its KV cache depends on. They stay these four: what else a model may
/// say is in [`CacheConfig`](crate::CacheConfig), the dimensions of [layers that
/// differ](LayerShape) too.
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

/// Dimensions of one layer, where the layers of a model differ or its values are not as wide as
/// its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LayerShape {
    /// Number of query heads.
    pub query_heads: usize,
    /// Number of key-value heads, a divisor of `query_heads`.
    pub kv_heads: usize,
    /// Number of channels of a query and a key.
    pub head_dim: usize,
    /// Number of channels of a value.
    pub value_dim: usize,
}

impl LayerShape {
    /// Creates the shape of a layer whose values are as wide as its keys.
    pub fn new(query_heads: usize, kv_heads: usize, head_dim: usize) -> Self {
        Self { query_heads, kv_heads, head_dim, value_dim: head_dim }
    }

    /// Sets the number of channels of a value.
    pub fn with_value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    /// The dimensions of a cache of so many such layers.
    pub(crate) fn of_cache(self, layers: usize) -> CacheShape {
        let Self { query_heads, kv_heads, head_dim, .. } = self;
        CacheShape { layers, query_heads, kv_heads, head_dim }
    }
}

impl From<CacheShape> for LayerShape {
    fn from(shape: CacheShape) -> Self {
        Self::new(shape.query_heads, shape.kv_heads, shape.head_dim)
    }
}
