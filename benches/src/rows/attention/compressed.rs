//! One query over a cache whose entries are shared (EMS) or quantized (KIVI, FP8).

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use briquette::{
    CacheConfig, CacheShape, InputCheck, KvCache, Policy,
    ops::{AttentionOutput, Ops, PackedNumbers, Reference},
    position::{NoPositionEncoding, PositionEncoding, RotaryEmbedding},
};
use briquette_ops::{
    AttentionInput, AttentionOps, ClusterOps, ClusteredKv, DecodeInput, DecodeOutput, EntryOps,
    KvLayout, MergeOps, ModelOps, PackedGroups, PackedVectors, QuantizedKv, RotaryTables, Scoring,
    SelectOps, Tail,
};
use burn::tensor::{DType, Distribution, Int, Tensor, TensorData};

use super::{HEAD_DIM, causal};
use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

/// Tokens per entry.
const GAMMA: usize = 4;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    if !bench.variants.contains(&Variant::Briquette) {
        return Ok(());
    }
    for (row, encoded) in [("shared-decode", false), ("shared-decode/rotary", true)] {
        if bench.wants(row) {
            shared(bench, row, encoded)?;
        }
    }
    for (row, policy, numbers) in [
        ("quantized-decode/2", Policy::kivi(2), "2 bits"),
        ("quantized-decode/4", Policy::kivi(4), "4 bits"),
        ("quantized-decode/fp8", Policy::fp8(), "FP8"),
    ] {
        if bench.wants(row) {
            quantized(bench, row, policy, numbers)?;
        }
    }
    Ok(())
}

/// Notes what a store asks for, and leaves it to lay its entries out.
#[derive(Debug)]
struct Notes {
    ops: Arc<dyn Ops>,
    step: Mutex<Option<DecodeInput>>,
}

impl AttentionOps for Notes {
    fn attention(&self, input: AttentionInput) -> briquette_ops::Result<AttentionOutput> {
        self.ops.attention(input)
    }

    fn decode(&self, input: &DecodeInput) -> briquette_ops::Result<Option<DecodeOutput>> {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner) = Some(input.clone());
        Ok(None)
    }
}

impl SelectOps for Notes {}
impl EntryOps for Notes {}
impl MergeOps for Notes {}
impl ClusterOps for Notes {}
impl ModelOps for Notes {}
impl Ops for Notes {}

/// Tensors of the same numbers elsewhere, and their bytes.
fn copied(numbers: &PackedNumbers) -> (PackedNumbers, usize) {
    let mut bytes = 0;
    let mut words = |x: &Tensor<2, Int>| {
        bytes += x.shape().num_elements() * x.dtype().size();
        x.clone().add_scalar(0)
    };
    let copy = match numbers {
        PackedNumbers::Levels { keys, values, bits } => {
            let [keys, values] = [keys, values].map(|x| PackedGroups {
                words: words(&x.words),
                scale: x.scale.clone().mul_scalar(1.0),
                min: x.min.clone().mul_scalar(1.0),
            });
            PackedNumbers::Levels { keys, values, bits: *bits }
        }
        PackedNumbers::Fp8 { keys, values } => {
            let [keys, values] = [keys, values].map(|x| PackedVectors {
                words: words(&x.words),
                scale: x.scale.clone().mul_scalar(1.0),
            });
            PackedNumbers::Fp8 { keys, values }
        }
    };
    let floats = |x: &Tensor<2>| x.shape().num_elements() * x.dtype().size();
    bytes += match numbers {
        PackedNumbers::Levels { keys, values, .. } => {
            [&keys.scale, &keys.min, &values.scale, &values.min].map(floats).iter().sum::<usize>()
        }
        PackedNumbers::Fp8 { keys, values } => floats(&keys.scale) + floats(&values.scale),
    };
    (copy, bytes)
}

/// A cache quantized as KIVI does, or in FP8: beside `decode/32768`, the dense decode over as many
/// tokens.
fn quantized(bench: &mut Bench, row: &'static str, policy: Policy, numbers: &str) -> Result<()> {
    let shape = CacheShape {
        layers: 1,
        query_heads: bench.size(32, 4),
        kv_heads: bench.size(8, 2),
        head_dim: HEAD_DIM,
    };
    let CacheShape { query_heads, kv_heads, .. } = shape;
    let tokens = bench.size(32_768, 256);
    let noise = |heads, count| bench.noise([1, heads, count, HEAD_DIM], bench.dtype);
    // A cache packs its entries as it does; the kernel then gets what the cache would give it.
    let notes = Arc::new(Notes { ops: bench.ops.clone(), step: Mutex::default() });
    let config = CacheConfig::default()
        .with_dtype(bench.dtype)
        .with_input_check(InputCheck::Never)
        .with_ops(notes.clone());
    let mut cache = KvCache::with_config(shape, policy, config, &bench.device)?;
    let mut attend = |count| {
        let [queries, keys, values] = [query_heads, kv_heads, kv_heads].map(|h| noise(h, count));
        cache.attend(0, queries, keys, values, &NoPositionEncoding)
    };
    attend(tokens)?;
    let expected = attend(1)?;
    let step = notes.step.lock().unwrap_or_else(PoisonError::into_inner).take();
    let step = step.context("the store did not ask for attention of its own")?;
    let KvLayout::Quantized(input) = step.kv.clone() else {
        bail!("the store asked for another attention than that of quantized entries")
    };
    drop(cache);

    let (_, packed) = copied(&input.numbers);
    let tail = (2 * kv_heads * input.tail.entries * HEAD_DIM) as f64 * bench.number();
    let case = Case {
        row,
        shape: format!(
            "batch 1, {query_heads}/{kv_heads} heads × {HEAD_DIM}, {tokens} tokens, {numbers}"
        ),
        bytes: packed as f64 + tail + (2 * query_heads * HEAD_DIM) as f64 * bench.number(),
        operations: 4.0 * (query_heads * tokens * HEAD_DIM) as f64,
    };
    // Other buffers of the same numbers.
    let sets = bench.sets(case.bytes);
    let inputs: Vec<DecodeInput> = (0..sets)
        .map(|_| {
            let (numbers, _) = copied(&input.numbers);
            let kv = KvLayout::Quantized(QuantizedKv { numbers, ..input.clone() });
            DecodeInput { kv, ..step.clone() }
        })
        .collect();
    let ops = bench.ops.clone();
    let attend = |set: usize| {
        let found = ops.decode(&inputs[set])?;
        found.map(|found| found.output).ok_or_else(|| anyhow!("no kernel on this device"))
    };
    let check = || difference(attend(0)?, expected.clone());
    bench.run(&case, "briquette", sets, Some(&check), &|set| keep(attend(set)?));
    Ok(())
}

/// Entries of 4 tokens each: beside `decode/1024-batch-32`, the dense decode over as many tokens.
/// Keys are held as they are encoded, or each token is turned to its own position on the way.
fn shared(bench: &mut Bench, row: &'static str, encoded: bool) -> Result<()> {
    let (heads, kv_heads) = (bench.size(32, 4), bench.size(8, 2));
    let (batch, entries) = (bench.size(32, 3), bench.size(256, 16));
    let tokens = entries * GAMMA;
    let of_heads = batch * kv_heads;
    let device = bench.device.clone();
    let upload = |numbers: Vec<i64>| {
        let count = numbers.len();
        Tensor::<1, Int>::from_data(TensorData::new(numbers, [count]), &device)
    };
    // Token `j` of a head belongs to its entry `j % entries`.
    let rectangle = [batch, kv_heads, tokens];
    let cluster_of_token =
        (0..of_heads * tokens).map(|token| (token % tokens % entries) as i64).collect();
    let tokens_by_cluster = (0..of_heads * tokens)
        .map(|place| {
            let (entry, turn) = (place % tokens / GAMMA, place % GAMMA);
            (turn * entries + entry) as i64
        })
        .collect();
    let padding_columns = upload(vec![0; of_heads]);
    let offsets = upload((0..=of_heads).map(|head| (head * entries) as i64).collect());
    let [cluster_of_token, tokens_by_cluster] =
        [cluster_of_token, tokens_by_cluster].map(|list| upload(list).reshape(rectangle));
    let rope = RotaryEmbedding::new(HEAD_DIM, tokens, 500_000.0, &device)?;
    let positions = Tensor::<1, Int>::arange(0..tokens as i64, &device).reshape([1, 1, tokens]);
    let positions = positions.repeat(&[batch, kv_heads, 1]);
    let rotary = encoded.then(|| {
        let (cosines, sines) = rope.tables_for(bench.dtype, tokens);
        RotaryTables { cosines, sines, positions: positions.clone() }
    });

    let of_entries = (2 * of_heads * entries * HEAD_DIM) as f64 * bench.number();
    let sets = bench.sets(of_entries);
    let scale = (HEAD_DIM as f64).powf(-0.5);
    let inputs: Vec<(Tensor<4>, ClusteredKv)> = (0..sets)
        .map(|_| {
            let directions = bench.noise([of_heads * entries, HEAD_DIM], DType::F32);
            let length = directions.clone().square().sum_dim(1).sqrt();
            let around_ten = Distribution::Uniform(5.0, 15.0);
            let tail = || bench.noise([batch, kv_heads, 1, HEAD_DIM], bench.dtype);
            let queries = bench.noise([batch, heads, 1, HEAD_DIM], bench.dtype);
            let kv = ClusteredKv {
                directions: (directions / length).cast(bench.dtype),
                values: bench.noise([of_heads * entries, HEAD_DIM], bench.dtype),
                tokens_by_cluster: tokens_by_cluster.clone(),
                cluster_of_token: cluster_of_token.clone(),
                norms: Tensor::random(rectangle, around_ten, (&device, DType::F32)),
                padding_columns: padding_columns.clone(),
                offsets: offsets.clone(),
                rotary: rotary.clone(),
                tail: Tail { keys: tail(), values: tail(), entries: 0 },
            };
            (queries, kv)
        })
        .collect();
    let turned = if encoded { 3.0 * (of_heads * tokens * HEAD_DIM) as f64 } else { 0.0 };
    let encoding = if encoded { ", encoded on the way" } else { "" };
    let case = Case {
        row,
        shape: format!(
            "batch {batch}, {heads}/{kv_heads} heads × {HEAD_DIM}, {entries} entries of {GAMMA} tokens{encoding}"
        ),
        // Of each token which it is, its entry, its norm, and its position.
        bytes: of_entries
            + (of_heads * tokens * if encoded { 16 } else { 12 }) as f64
            + (2 * batch * heads * HEAD_DIM) as f64 * bench.number(),
        operations: turned + 2.0 * (batch * heads * HEAD_DIM) as f64 * (tokens + entries) as f64,
    };
    let ops = bench.ops.clone();
    let calls: Vec<DecodeInput> = inputs
        .iter()
        .cloned()
        .map(|(queries, kv)| DecodeInput {
            queries,
            kv: KvLayout::Clustered(kv),
            scoring: Scoring::plain(scale),
            weights: false,
        })
        .collect();
    let attend = |set: usize| {
        let found = ops.decode(&calls[set])?;
        found.map(|found| found.output).ok_or_else(|| anyhow!("no kernel on this device"))
    };
    // The first batch row, laid out.
    let check = || {
        let (queries, input) = &inputs[0];
        let shape = [1, kv_heads, tokens, HEAD_DIM];
        let entry =
            input.cluster_of_token.clone().narrow(0, 0, 1).unsqueeze_dim::<4>(3).expand(shape);
        let lay_out = |x: &Tensor<2>| {
            let of_row = x.clone().cast(DType::F32).narrow(0, 0, kv_heads * entries);
            of_row.reshape([1, kv_heads, entries, HEAD_DIM]).gather(2, entry.clone())
        };
        let norms = input.norms.clone().narrow(0, 0, 1).unsqueeze_dim::<4>(3);
        let mut keys = lay_out(&input.directions) * norms;
        if encoded {
            keys = rope.encode(keys, positions.clone().narrow(0, 0, 1));
        }
        let first = [queries.clone().narrow(0, 0, 1), keys, lay_out(&input.values)];
        let expected = Reference.attention(causal(first))?;
        difference(attend(0)?.narrow(0, 0, 1), expected.output)
    };
    bench.run(&case, "briquette", sets, Some(&check), &|set| keep(attend(set)?));
    Ok(())
}
