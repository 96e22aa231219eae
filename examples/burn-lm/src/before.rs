//! The cache of burn-lm in short, and the parts of the decoder that call it.

use burn::{
    nn::RotaryEncoding,
    tensor::{Bool, Device, Int, Tensor, module::attention, ops::AttentionModuleOptions},
};

use crate::decoder::{Attention, HEADS, KV_HEADS, LAYERS, Transformer};

/// Keys and values of every token of a layer so far, each `[batch, kv_heads, tokens, head_dim]`.
#[derive(Default)]
pub(crate) struct KeyValueCache {
    held: Option<(Tensor<4>, Tensor<4>)>,
}

impl KeyValueCache {
    /// Takes new keys and values in, and returns all of them.
    fn forward(&mut self, key: Tensor<4>, value: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let all = match self.held.take() {
            None => (key, value),
            Some((k, v)) => (Tensor::cat(vec![k, key], 2), Tensor::cat(vec![v, value], 2)),
        };
        self.held.insert(all).clone()
    }

    fn len(&self) -> usize {
        self.held.as_ref().map_or(0, |(key, _)| key.dims()[2])
    }

    fn reset(&mut self) {
        self.held = None;
    }
}

pub(crate) struct TransformerCache {
    layers: Vec<KeyValueCache>,
    device: Device,
}

impl TransformerCache {
    pub(crate) fn new(device: &Device) -> Self {
        let layers = (0..LAYERS).map(|_| KeyValueCache::default()).collect();
        Self { layers, device: device.clone() }
    }

    /// The mask of so many new tokens; `None` if they see everything.
    pub(crate) fn prepare(&self, new: usize) -> Option<Tensor<4, Bool>> {
        let seen = self.len();
        let mask = || Tensor::<2, Bool>::tril_mask([new, seen + new], seen as i64, &self.device);
        (new > 1).then(|| mask().unsqueeze())
    }

    pub(crate) fn len(&self) -> usize {
        self.layers.first().map_or(0, KeyValueCache::len)
    }

    pub(crate) fn reset(&mut self) {
        self.layers.iter_mut().for_each(KeyValueCache::reset);
    }
}

impl Transformer {
    /// Logits, `[batch, tokens, vocabulary]`.
    pub(crate) fn forward_before(
        &self,
        tokens: Tensor<2, Int>,
        cache: &mut TransformerCache,
        rope: &RotaryEncoding,
        start: usize,
    ) -> Tensor<3> {
        let mask = cache.prepare(tokens.dims()[1]);
        let mut h = self.embed(tokens);
        for (layer, cache) in self.layers.iter().zip(&mut cache.layers) {
            let x = layer.attention_norm.forward(h.clone());
            let x = layer.attention.forward_before(x, cache, rope, start, mask.clone());
            h = layer.feed_forward(h + x);
        }
        self.logits(h)
    }
}

impl Attention {
    fn forward_before(
        &self,
        x: Tensor<3>,
        cache: &mut KeyValueCache,
        rope: &RotaryEncoding,
        start: usize,
        mask: Option<Tensor<4, Bool>>,
    ) -> Tensor<3> {
        let (q, k, v) = self.project(x);
        let q = rope.apply(q, start);
        let k = rope.apply(k, start);
        let (k, v) = cache.forward(k, v);
        let (k, v) = (repeat_kv(k), repeat_kv(v));
        let output = attention(q, k, v, mask, None, AttentionModuleOptions::default());
        self.project_output(output)
    }
}

/// `[batch, kv_heads, tokens, head_dim]` -> `[batch, heads, tokens, head_dim]`
fn repeat_kv(x: Tensor<4>) -> Tensor<4> {
    let [batch, _, tokens, head_dim] = x.dims();
    let x = x.unsqueeze_dim::<5>(2);
    let x = x.expand([batch, KV_HEADS, HEADS / KV_HEADS, tokens, head_dim]);
    x.reshape([batch, HEADS, tokens, head_dim])
}
