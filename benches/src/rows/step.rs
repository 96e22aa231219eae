//! The cost of a compression beside the prefill of its layer.

use anyhow::Result;
use briquette::{
    Budget, CacheConfig, CacheShape, InputCheck, KvCache, Policy, SparsePrefill,
    position::{NoPositionEncoding, RotaryEmbedding},
};
use burn::tensor::{Int, Tensor};

use crate::{
    bench::{Bench, Case, Variant},
    measure::keep,
    model::{Dimensions, random_llama},
};

pub(super) fn run(bench: &mut Bench) -> Result<()> {
    if !bench.variants.contains(&Variant::Briquette) {
        return Ok(());
    }
    let tokens = bench.size(32_768, 256);
    let shape = CacheShape {
        layers: 1,
        query_heads: bench.size(32, 4),
        kv_heads: bench.size(8, 2),
        head_dim: bench.size(128, 16),
    };
    let rows = ["layer-prefill", "compress-step/snapkv", "compress-step/h2o", "compress-step/ems"];
    if rows.iter().any(|row| bench.wants(row)) {
        attention(bench, shape, tokens)?;
    }
    if ["sparse/dense", "sparse/minference", "sparse/xattention"].iter().any(|row| bench.wants(row))
    {
        sparse(bench, shape, tokens)?;
    }
    whole(bench, tokens)
}

/// The cache alone: attention over the prompt, then score, select and compact.
fn attention(bench: &mut Bench, shape: CacheShape, tokens: usize) -> Result<()> {
    let CacheShape { query_heads, kv_heads, head_dim, .. } = shape;
    let kept = bench.size(1024, 64);
    // Reading a number back to look for NaN is no part of the work.
    let config = CacheConfig::default()
        .with_dtype(bench.dtype)
        .with_input_check(InputCheck::Never)
        .with_ops(bench.ops.clone());
    let queries = bench.noise([1, query_heads, tokens, head_dim], bench.dtype);
    let [keys, values] =
        [(); 2].map(|()| bench.noise([1, kv_heads, tokens, head_dim], bench.dtype));
    let device = bench.device.clone();
    let prefill = |policy: &Policy| -> Result<KvCache> {
        let (policy, config) = (policy.clone(), config.clone());
        let mut cache = KvCache::with_config(shape, policy, config, &device)?;
        let (queries, keys, values) = (queries.clone(), keys.clone(), values.clone());
        cache.attend(0, queries, keys, values, &NoPositionEncoding)?;
        Ok(cache)
    };
    let full = Policy::full();
    let pairs = query_heads as f64 * (tokens as f64).powi(2) / 2.0;
    let text = format!("{query_heads}/{kv_heads} heads × {head_dim}, {tokens} tokens");
    let case = Case {
        row: "layer-prefill",
        shape: text.clone(),
        bytes: (2 * (query_heads + kv_heads) * tokens * head_dim) as f64 * bench.number(),
        operations: 4.0 * pairs * head_dim as f64,
    };
    if bench.wants(case.row) {
        bench.run(&case, "briquette", 1, None, &|_| keep(prefill(&full)?));
    }
    let budget = Budget::Tokens(kept);
    for (row, policy) in [
        ("compress-step/snapkv", Policy::snapkv(budget)),
        ("compress-step/h2o", Policy::h2o(budget)),
        ("compress-step/ems", Policy::ems(budget)),
    ] {
        if !bench.wants(row) {
            continue;
        }
        let case = Case {
            row,
            shape: format!("{text}, {kept} kept"),
            // Every key once more, and what is kept.
            bytes: (kv_heads * tokens * head_dim) as f64 * bench.number()
                + (4 * kv_heads * kept * head_dim) as f64 * bench.number(),
            operations: if row.ends_with("snapkv") { 0.0 } else { 2.0 * pairs * head_dim as f64 },
        };
        let (with, without) = (|_| keep(prefill(&policy)?), |_| keep(prefill(&full)?));
        bench.run_difference(&case, "briquette", None, &with, &without);
    }
    Ok(())
}

/// A prompt in which near tokens matter more, as positions are encoded, under all products and
/// under the patterns of MInference and XAttention, which are searched in every call.
fn sparse(bench: &mut Bench, shape: CacheShape, tokens: usize) -> Result<()> {
    let CacheShape { query_heads, kv_heads, head_dim, .. } = shape;
    let config = CacheConfig::default()
        .with_dtype(bench.dtype)
        .with_input_check(InputCheck::Never)
        .with_ops(bench.ops.clone());
    let near = |heads| bench.noise([1, heads, tokens, head_dim], bench.dtype) * 0.5 + 0.8;
    let (queries, keys) = (near(query_heads), near(kv_heads));
    let values = bench.noise([1, kv_heads, tokens, head_dim], bench.dtype);
    let device = bench.device.clone();
    let rope = RotaryEmbedding::new(head_dim, tokens, 500_000.0, &device)?;
    let prefill = |policy: &Policy| -> Result<KvCache> {
        let (policy, config) = (policy.clone(), config.clone());
        let mut cache = KvCache::with_config(shape, policy, config, &device)?;
        let (queries, keys, values) = (queries.clone(), keys.clone(), values.clone());
        cache.attend(0, queries, keys, values, &rope)?;
        Ok(cache)
    };
    let full = Policy::full;
    for (row, policy) in [
        ("sparse/dense", full()),
        ("sparse/minference", full().with_sparse_prefill(SparsePrefill::minference())),
        ("sparse/xattention", full().with_sparse_prefill(SparsePrefill::xattention())),
    ] {
        if !bench.wants(row) {
            continue;
        }
        let case = Case {
            row,
            shape: format!("{query_heads}/{kv_heads} heads × {head_dim}, {tokens} tokens"),
            bytes: (2 * (query_heads + kv_heads) * tokens * head_dim) as f64 * bench.number(),
            // What a pattern saves is not known before.
            operations: if row == "sparse/dense" {
                2.0 * query_heads as f64 * (tokens as f64).powi(2) * head_dim as f64
            } else {
                0.0
            },
        };
        bench.run(&case, "briquette", 1, None, &|_| keep(prefill(&policy)?));
    }
    Ok(())
}

/// The decoder layer around it: projections, norms, feed-forward.
fn whole(bench: &mut Bench, tokens: usize) -> Result<()> {
    let row = "layer-prefill/whole";
    if !bench.wants(row) {
        return Ok(());
    }
    let dimensions = if bench.quick { Dimensions::TINY } else { Dimensions::LLAMA_3_8B };
    let dimensions = Dimensions { layers: 1, vocabulary: 1024, ..dimensions };
    let model = random_llama(dimensions, bench.dtype, &bench.device)?;
    let ids = Tensor::<1, Int>::arange(0..tokens as i64, &bench.device).remainder_scalar(1024);
    let ids = ids.reshape([1, tokens]);
    let pairs = dimensions.query_heads as f64 * (tokens as f64).powi(2) / 2.0;
    let weights = (dimensions.parameters() - 2 * dimensions.vocabulary * dimensions.hidden) as f64;
    let case = Case {
        row,
        shape: format!("one layer of Llama 3 8B, {tokens} tokens"),
        bytes: (weights + (2 * tokens * dimensions.hidden) as f64) * bench.number(),
        operations: 4.0 * pairs * dimensions.head_dim as f64 + 2.0 * weights * tokens as f64,
    };
    // As the model's own cache.
    let config = CacheConfig::default()
        .with_dtype(bench.dtype)
        .with_input_check(InputCheck::Prompt)
        .with_ops(bench.ops.clone());
    let device = bench.device.clone();
    let prefill = || -> Result<Tensor<3>> {
        let (shape, config) = (model.cache_shape(), config.clone());
        let mut cache = KvCache::with_config(shape, Policy::full(), config, &device)?;
        Ok(model.hidden_states(ids.clone(), &mut cache)?)
    };
    bench.run(&case, "briquette", 1, None, &|_| keep(prefill()?));
    Ok(())
}
