//! A cache of the same shape that a policy compresses, and the parts of the decoder that call it.

use briquette::{CacheShape, KvCache, Policy, Prompt, Result, position::Rotated};
use burn::{
    nn::RotaryEncoding,
    tensor::{Device, Int, Tensor},
};

use crate::decoder::{Attention, HEAD_DIM, HEADS, KV_HEADS, LAYERS, Transformer};

/// The keys and values of one layer that the policy keeps.
pub(crate) struct KeyValueCache<'a> {
    cache: &'a mut KvCache,
    layer: usize,
}

impl KeyValueCache<'_> {
    /// Takes new keys and values in, and returns the output of new queries over all kept tokens.
    /// Queries and keys come rotated.
    ///
    /// # Shapes
    /// - `query`: `[batch, heads, new, head_dim]`
    /// - `key`, `value`: `[batch, kv_heads, new, head_dim]`
    /// - returns `[batch, heads, new, head_dim]`
    fn forward(&mut self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>> {
        self.cache.attend(self.layer, query, key, value, &Rotated)
    }
}

/// All layers have one cache: policies share budgets out among them.
pub(crate) struct TransformerCache {
    cache: KvCache,
}

impl TransformerCache {
    pub(crate) fn new(policy: Policy, device: &Device) -> Result<Self> {
        let shape = CacheShape {
            layers: LAYERS,
            query_heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
        };
        Ok(Self { cache: KvCache::new(shape, policy, device)? })
    }

    /// Declares so many new tokens a prompt. One alone is a decoded token, unless it is the first.
    pub(crate) fn prepare(&mut self, new: usize) -> Result<()> {
        if new > 1 { self.cache.begin_prompt(Prompt::new(new)) } else { Ok(()) }
    }

    fn layer(&mut self, layer: usize) -> KeyValueCache<'_> {
        KeyValueCache { cache: &mut self.cache, layer }
    }

    /// Tokens seen. The position of the next one, however many are kept.
    pub(crate) fn len(&self) -> usize {
        self.cache.tokens_seen().first().copied().unwrap_or(0)
    }

    /// Tokens kept in the first layer.
    pub(crate) fn kept(&self) -> Result<usize> {
        Ok(self.cache.tokens_kept(0)?.first().copied().unwrap_or(0))
    }

    pub(crate) fn reset(&mut self) {
        self.cache.reset();
    }
}

impl Transformer {
    /// Logits, `[batch, tokens, vocabulary]`.
    pub(crate) fn forward_after(
        &self,
        tokens: Tensor<2, Int>,
        cache: &mut TransformerCache,
        rope: &RotaryEncoding,
        start: usize,
    ) -> Result<Tensor<3>> {
        cache.prepare(tokens.dims()[1])?;
        let mut h = self.embed(tokens);
        for (index, layer) in self.layers.iter().enumerate() {
            let x = layer.attention_norm.forward(h.clone());
            let x = layer.attention.forward_after(x, &mut cache.layer(index), rope, start)?;
            h = layer.feed_forward(h + x);
        }
        Ok(self.logits(h))
    }
}

impl Attention {
    fn forward_after(
        &self,
        x: Tensor<3>,
        cache: &mut KeyValueCache<'_>,
        rope: &RotaryEncoding,
        start: usize,
    ) -> Result<Tensor<3>> {
        let (q, k, v) = self.project(x);
        let q = rope.apply(q, start);
        let k = rope.apply(k, start);
        let output = cache.forward(q, k, v)?;
        Ok(self.project_output(output))
    }
}
