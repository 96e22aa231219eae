//! A cache of all layers: policies share budgets out among them, and look at queries.

use briquette::{CacheLayer, KvCache, Policy, Result, position::Rotated};
use burn::{
    nn::RotaryEncoding,
    tensor::{Device, Tensor},
};

use crate::decoder::SHAPE;

/// A layer, and the rotation of its queries and keys, which some policies take back.
pub(crate) struct KeyValueCache<'a> {
    layer: CacheLayer<'a>,
    rope: &'a RotaryEncoding,
}

impl KeyValueCache<'_> {
    /// Takes new keys and values in, and returns the output of new queries over all that is kept.
    /// Queries and keys come rotated.
    pub(crate) fn attend(
        &mut self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
    ) -> Result<Tensor<4>> {
        self.layer.attend(query, key, value, &Rotated::by(self.rope))
    }
}

pub(crate) struct TransformerCache {
    cache: KvCache,
    rope: RotaryEncoding,
}

impl TransformerCache {
    pub(crate) fn new(policy: Policy, rope: &RotaryEncoding, device: &Device) -> Result<Self> {
        Ok(Self { cache: KvCache::new(SHAPE, policy, device)?, rope: rope.clone() })
    }

    pub(crate) fn layer(&mut self, layer: usize) -> Result<KeyValueCache<'_>> {
        Ok(KeyValueCache { layer: self.cache.layer(layer)?, rope: &self.rope })
    }

    /// Tokens kept in the first layer.
    pub(crate) fn kept(&self) -> Result<usize> {
        Ok(self.cache.tokens_kept(0)?[0])
    }
}
