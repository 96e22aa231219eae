//! The parts of the decoder that know the cache.

use briquette::Result;
use burn::{
    nn::RotaryEncoding,
    tensor::{Int, Tensor},
};

use super::cache::{KeyValueCache, TransformerCache};
use crate::decoder::{Attention, Block, Transformer};

/// `[batch, tokens]` -> logits, `[batch, tokens, vocabulary]`
pub(crate) fn forward(
    model: &Transformer,
    tokens: Tensor<2, Int>,
    cache: &mut TransformerCache,
    rope: &RotaryEncoding,
    start: usize,
) -> Result<Tensor<3>> {
    let mut x = model.embed(tokens);
    for (index, layer) in model.layers.iter().enumerate() {
        x = forward_block(layer, x, &mut cache.layer(index)?, rope, start)?;
    }
    Ok(model.logits(x))
}

fn forward_block(
    block: &Block,
    x: Tensor<3>,
    cache: &mut KeyValueCache<'_>,
    rope: &RotaryEncoding,
    start: usize,
) -> Result<Tensor<3>> {
    let normed = block.attention_norm.forward(x.clone());
    let attended = forward_cache(&block.attention, normed, cache, rope, start)?;
    Ok(block.feed_forward(x + attended))
}

fn forward_cache(
    attention: &Attention,
    x: Tensor<3>,
    cache: &mut KeyValueCache<'_>,
    rope: &RotaryEncoding,
    start: usize,
) -> Result<Tensor<3>> {
    let (q, k, v) = attention.project(x);
    let q = rope.apply(q, start);
    let k = rope.apply(k, start);
    Ok(attention.project_output(cache.attend(q, k, v)?))
}
