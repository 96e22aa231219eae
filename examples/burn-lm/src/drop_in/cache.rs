//! A cache with the methods of the one before, for policies that look at keys and values alone.

use briquette::{CacheConfig, KvCache, Policy, Result};
use burn::tensor::{Bool, Device, Tensor};

use crate::decoder::SHAPE;

/// The keys and values of a layer that the policy keeps.
pub(crate) struct KeyValueCache {
    cache: KvCache,
    tokens: usize,
}

impl KeyValueCache {
    /// Takes new keys and values in, and returns those that the new tokens attend to. Keys come
    /// rotated.
    ///
    /// # Panics
    /// For a policy that needs queries, and for one whose heads hold different numbers of tokens,
    /// which need its mask.
    pub(crate) fn forward(&mut self, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let held = self.cache.update(0, key, value).expect("a policy of keys and values");
        assert!(held.mask.is_none(), "heads hold different numbers of tokens");
        self.tokens = held.keys.dims()[2];
        (held.keys, held.values)
    }

    /// Tokens that the last call attended to.
    pub(crate) fn len(&self) -> usize {
        self.tokens
    }
}

pub(crate) struct TransformerCache {
    pub(crate) layers: Vec<KeyValueCache>,
}

impl TransformerCache {
    pub(crate) fn new(policy: &Policy, device: &Device) -> Result<Self> {
        let caches = KvCache::per_layer(SHAPE, policy, &CacheConfig::default(), device)?;
        let layers = caches.into_iter().map(|cache| KeyValueCache { cache, tokens: 0 }).collect();
        Ok(Self { layers })
    }

    /// No mask: layers may keep different numbers of tokens, so the attention makes its own.
    pub(crate) fn prepare(&self, _new: usize) -> Option<Tensor<4, Bool>> {
        None
    }

    /// Tokens kept in the first layer.
    pub(crate) fn kept(&self) -> Result<usize> {
        Ok(self.layers[0].cache.tokens_kept(0)?[0])
    }
}
