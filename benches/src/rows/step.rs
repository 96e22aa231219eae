//! The cost of a compression beside the prefill of its layer.

use anyhow::Result;
use briquette::{
    Budget, CacheConfig, CacheShape, InputCheck, KvCache, Policy, SparsePrefill,
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
};
use burn::tensor::{Device, Int, Tensor};

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
    sparse(bench, shape, tokens)?;
    whole(bench, tokens)
}

/// A prompt of one layer.
struct LayerPrompt {
    shape: CacheShape,
    config: CacheConfig,
    device: Device,
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
}

impl LayerPrompt {
    fn noise(bench: &Bench, shape: CacheShape, tokens: usize) -> Self {
        let noise = |heads| bench.noise([1, heads, tokens, shape.head_dim], bench.dtype);
        // Reading a number back to look for NaN is no part of the work.
        let config = CacheConfig::default()
            .with_dtype(bench.dtype)
            .with_input_check(InputCheck::Never)
            .with_ops(bench.ops.clone());
        let queries = noise(shape.query_heads);
        let [keys, values] = [(); 2].map(|()| noise(shape.kv_heads));
        Self { shape, config, device: bench.device.clone(), queries, keys, values }
    }

    /// The cache behind the prompt.
    fn prefill(&self, policy: &Policy, encoding: &dyn PositionEncoding) -> Result<KvCache> {
        let (policy, config) = (policy.clone(), self.config.clone());
        let mut cache = KvCache::with_config(self.shape, policy, config, &self.device)?;
        let [queries, keys, values] = [&self.queries, &self.keys, &self.values].map(Tensor::clone);
        cache.attend(0, queries, keys, values, encoding)?;
        Ok(cache)
    }

    /// The case of attention over all of it.
    fn case(&self, row: &'static str, bench: &Bench) -> Case<'static> {
        let CacheShape { query_heads, kv_heads, head_dim, .. } = self.shape;
        let tokens = self.queries.dims()[2];
        Case {
            row,
            shape: format!("{query_heads}/{kv_heads} heads × {head_dim}, {tokens} tokens"),
            bytes: (2 * (query_heads + kv_heads) * tokens * head_dim) as f64 * bench.number(),
            operations: 2.0 * query_heads as f64 * (tokens as f64).powi(2) * head_dim as f64,
        }
    }
}

/// The cache alone: attention over the prompt, then score, select and compact.
fn attention(bench: &mut Bench, shape: CacheShape, tokens: usize) -> Result<()> {
    let CacheShape { kv_heads, head_dim, .. } = shape;
    let kept = bench.size(1024, 64);
    let prompt = LayerPrompt::noise(bench, shape, tokens);
    let prefill = |policy: &Policy| prompt.prefill(policy, &NoPositionEncoding);
    let full = Policy::full();
    let all = prompt.case("layer-prefill", bench);
    if bench.wants(all.row) {
        bench.run(&all, "briquette", 1, None, &|_| keep(prefill(&full)?));
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
            shape: format!("{}, {kept} kept", all.shape),
            // Every key once more, and what is kept.
            bytes: (kv_heads * tokens * head_dim) as f64 * bench.number()
                + (4 * kv_heads * kept * head_dim) as f64 * bench.number(),
            operations: if row.ends_with("snapkv") { 0.0 } else { all.operations / 2.0 },
        };
        let (with, without) = (|_| keep(prefill(&policy)?), |_| keep(prefill(&full)?));
        bench.run_difference(&case, "briquette", None, &with, &without);
    }
    Ok(())
}

/// A prompt in which near tokens matter more, as positions are encoded, under all products and
/// under the patterns of MInference and XAttention, which are searched in every call.
fn sparse(bench: &mut Bench, shape: CacheShape, tokens: usize) -> Result<()> {
    let full = Policy::full;
    let mut rows = vec![
        ("sparse/dense", full()),
        ("sparse/minference", full().with_sparse_prefill(SparsePrefill::minference())),
        ("sparse/xattention", full().with_sparse_prefill(SparsePrefill::xattention())),
    ];
    rows.retain(|(row, _)| bench.wants(row));
    if rows.is_empty() {
        return Ok(());
    }
    let near = |x: Tensor<4>| x * 0.5 + 0.8;
    let noise = LayerPrompt::noise(bench, shape, tokens);
    let (queries, keys) = (near(noise.queries), near(noise.keys));
    let prompt = LayerPrompt { queries, keys, ..noise };
    let rope = RotaryEmbedding::new(shape.head_dim, tokens, 500_000.0, &prompt.device)?;
    for (row, policy) in rows {
        let mut case = prompt.case(row, bench);
        if policy.sparse_prefill().is_some() {
            // What a pattern saves is not known before.
            case.operations = 0.0;
        }
        bench.run(&case, "briquette", 1, None, &|_| keep(prompt.prefill(&policy, &rope)?));
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
