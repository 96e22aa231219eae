//! Qwen3: grouped heads, and norms of queries and keys before they are rotated.

use briquette::{
    CacheShape, KvCache, Policy, Result,
    position::{RotaryEmbedding, Rotated},
};
use bunsen::{
    blocks::transformers::{
        attention::csa::{CausalSelfAttention, CausalSelfAttentionMeta},
        embedding,
    },
    burner::module::ModuleInit,
    kits::gpts::qwen3::blocks::{Qwen3Config, Qwen3Meta, Qwen3Model},
    ops::{
        embedding::inverse_frequency_table,
        transformers::attention::{
            KVCacheModel, ScaledDotProductAttentionConfig, scaled_dot_product_attention,
        },
    },
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::{POLICIES, TOKENS, VOCABULARY, apart, calls, policy, print, print_head};

/// Queries, keys and values of a layer, `[batch, heads, new, head_dim]`, rotated.
type Qkv = [Tensor<4>; 3];

/// Computes the attention of a layer.
type Attend = fn(&mut KvCache, usize, Qkv, &RotaryEmbedding) -> Result<Tensor<4>>;

/// The cache does. Policies that need keys before their rotation are told how to take it back.
fn by_cache(
    cache: &mut KvCache,
    layer: usize,
    [q, k, v]: Qkv,
    rope: &RotaryEmbedding,
) -> Result<Tensor<4>> {
    cache.attend(layer, q, k, v, &Rotated::by(rope))
}

/// bunsen does, over what the cache hands back. Its attention takes no mask by head, so heads must
/// hold equal numbers of tokens.
fn by_bunsen(
    cache: &mut KvCache,
    layer: usize,
    [q, k, v]: Qkv,
    _: &RotaryEmbedding,
) -> Result<Tensor<4>> {
    let held = cache.update(layer, k, v)?;
    assert!(held.mask.is_none(), "heads hold different numbers of tokens");
    let config = ScaledDotProductAttentionConfig::new()
        .with_is_causal(q.dims()[2] > 1)
        .with_enable_gqa(true);
    Ok(scaled_dot_product_attention(q, held.keys, held.values, None, None, config))
}

fn project(
    attention: &CausalSelfAttention,
    x: Tensor<3>,
    rope: &embedding::RotaryEmbedding,
) -> Qkv {
    let [batch, new, _] = x.dims();
    let split = |x: Tensor<3>, heads: usize| x.reshape([batch, new, heads, attention.head_dim]);
    let q = split(attention.c_q.forward(x.clone()), attention.n_head());
    let k = split(attention.c_k.forward(x.clone()), attention.n_kv_head());
    let v = split(attention.c_v.forward(x), attention.n_kv_head());
    let q = attention.qk_norm.apply(q, &attention.q_norm, rope);
    let k = attention.qk_norm.apply(k, &attention.k_norm, rope);
    [q, k, v].map(|x| x.swap_dims(1, 2))
}

/// Computes the logits of tokens, `[batch, new]`; `rope` has a row for each of them.
fn forward(
    model: &Qwen3Model,
    tokens: Tensor<2, Int>,
    rope: &embedding::RotaryEmbedding,
    mut attend: impl FnMut(usize, Qkv) -> Result<Tensor<4>>,
) -> Result<Tensor<3>> {
    let mut x = model.embed(tokens);
    for (index, layer) in model.layers.iter().enumerate() {
        let qkv = project(&layer.attn, layer.attn_norm.forward(x.clone()), rope);
        let heads: Tensor<3> = attend(index, qkv)?.swap_dims(1, 2).flatten(2, 3);
        x = x + layer.attn.c_proj.forward(heads);
        x = x.clone() + layer.mlp.forward(layer.mlp_norm.forward(x));
    }
    Ok(model.logits(model.norm.forward(x)))
}

pub(crate) fn run(device: &Device) -> Result<()> {
    let model: Qwen3Model = Qwen3Config::new(VOCABULARY, 128, 4, 8, 2, 32, 256).init(device);
    let shape = CacheShape {
        layers: model.n_layers(),
        query_heads: model.layers[0].attn.n_head(),
        kv_heads: model.n_kv_heads(),
        head_dim: model.head_dim(),
    };
    let rope = model.rotary(TOKENS, device);
    let frequencies = inverse_frequency_table(model.rope_theta, shape.head_dim, device);
    let frequencies: Vec<f32> = frequencies.try_into_vec_as()?;
    let same_rope = RotaryEmbedding::with_inverse_frequencies(&frequencies, TOKENS, 1.0, device)?;
    let ids: Vec<i64> = (0..TOKENS as i64).map(|at| (at * at + 7 * at) % 251).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [1, TOKENS]), device);

    let mut own = model.kv_cache_config().with_seq_len(TOKENS).init();
    let own_logits = |(start, new)| {
        let embedded = model.embed(ids.clone().narrow(1, start, new));
        model.logits(model.forward_hidden(embedded, &rope, Some(&mut own)))
    };
    let expected: Vec<Tensor<3>> = calls().map(own_logits).collect();
    let decode = |name: &str, policy: Policy, attend: Attend| -> Result<()> {
        let mut cache = KvCache::new(shape, policy, device)?;
        let mut off = Vec::new();
        for ((start, new), expected) in calls().zip(&expected) {
            let tokens = ids.clone().narrow(1, start, new);
            let rows = rope.clip_range(start..start + new);
            let attend = |layer, qkv| attend(&mut cache, layer, qkv, &same_rope);
            off.push(apart(forward(&model, tokens, &rows, attend)?, expected.clone())?);
        }
        print(name, &cache, &off)
    };

    print_head("Qwen3");
    let bytes = shape.token_bytes(DType::F32) * TOKENS;
    println!("{:<24}{:>8.1}{bytes:>12}", "KVCache", TOKENS as f64);
    decode("full, by bunsen", Policy::full(), by_bunsen)?;
    decode("knorm, by bunsen", policy("knorm")?, by_bunsen)?;
    decode("full", Policy::full(), by_cache)?;
    POLICIES.into_iter().try_for_each(|name| decode(name, policy(name)?, by_cache))
}
