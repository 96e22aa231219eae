//! The parts of the decoder that know the cache.

use burn::{
    nn::RotaryEncoding,
    tensor::{Bool, Int, Tensor, activation::softmax},
};

use super::cache::{KeyValueCache, TransformerCache};
use crate::decoder::{Attention, Block, HEAD_DIM, HEADS, KV_HEADS, Transformer};

/// `[batch, tokens]` -> logits, `[batch, tokens, vocabulary]`
pub(crate) fn forward(
    model: &Transformer,
    tokens: Tensor<2, Int>,
    cache: &mut TransformerCache,
    rope: &RotaryEncoding,
    start: usize,
    mask: Option<Tensor<4, Bool>>,
) -> Tensor<3> {
    let mut x = model.embed(tokens);
    for (layer, cache) in model.layers.iter().zip(&mut cache.layers) {
        x = forward_block(layer, x, cache, rope, start, mask.clone());
    }
    model.logits(x)
}

fn forward_block(
    block: &Block,
    x: Tensor<3>,
    cache: &mut KeyValueCache,
    rope: &RotaryEncoding,
    start: usize,
    mask: Option<Tensor<4, Bool>>,
) -> Tensor<3> {
    let normed = block.attention_norm.forward(x.clone());
    let attended = forward_cache(&block.attention, normed, cache, rope, start, mask);
    block.feed_forward(x + attended)
}

fn forward_cache(
    attention: &Attention,
    x: Tensor<3>,
    cache: &mut KeyValueCache,
    rope: &RotaryEncoding,
    start: usize,
    mask: Option<Tensor<4, Bool>>,
) -> Tensor<3> {
    let (q, k, v) = attention.project(x);
    let q = rope.apply(q, start);
    let k = rope.apply(k, start);
    let (k, v) = cache.forward(k, v);
    let mask = mask.or_else(|| causal(q.dims()[2], cache.len(), &q));
    attention.project_output(attend(q, k, v, mask))
}

/// Hides later tokens from each of the `new` queries, where there are several.
fn causal(new: usize, tokens: usize, q: &Tensor<4>) -> Option<Tensor<4, Bool>> {
    let before = (tokens - new) as i64;
    let mask = || Tensor::<2, Bool>::tril_mask([new, tokens], before, &q.device());
    (new > 1).then(|| mask().unsqueeze())
}

fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<4, Bool>>) -> Tensor<4> {
    let (k, v) = (repeat_kv(k), repeat_kv(v));
    let mut scores = q.matmul(k.swap_dims(2, 3)) / (HEAD_DIM as f64).sqrt();
    if let Some(mask) = mask {
        let mask = mask.expand(scores.dims());
        scores = scores.mask_fill(mask, f32::NEG_INFINITY);
    }
    softmax(scores, 3).matmul(v)
}

/// `[batch, kv_heads, tokens, head_dim]` -> `[batch, heads, tokens, head_dim]`
fn repeat_kv(x: Tensor<4>) -> Tensor<4> {
    let [batch, _, tokens, _] = x.dims();
    let x = x.unsqueeze_dim::<5>(2);
    let x = x.expand([batch, KV_HEADS, HEADS / KV_HEADS, tokens, HEAD_DIM]);
    x.reshape([batch, HEADS, tokens, HEAD_DIM])
}
