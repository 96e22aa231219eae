//! Attention: prompts, and one query over a cache.

use anyhow::Result;
use briquette::ops::{HeadPattern, Ops, Reference};
use briquette_ops::{
    AttentionInput, AttentionOps, DecodeInput, KvLayout, RaggedKv, Scoring, SparseAttentionInput,
    SparseTiles, Tail, Window,
};
use burn::tensor::{Int, Tensor, TensorData, module, ops::AttentionModuleOptions};

use super::{HEAD_DIM, causal, plain};
use crate::{
    bench::{Bench, Case, Variant, difference},
    measure::keep,
};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let (heads, few) = (bench.size(32, 4), bench.size(8, 2));
    let tokens = bench.size(4096, 64);
    let plain = || Scoring::plain((HEAD_DIM as f64).powf(-0.5));
    prefill(bench, "prefill", [heads, heads, tokens], plain());
    prefill(bench, "prefill-grouped", [heads, few, tokens], plain());
    let window = Scoring { window: Some((tokens / 8).into()), ..plain() };
    prefill(bench, "prefill-window", [heads, few, tokens], window);
    let softcap = Scoring { softcap: Some(50.0), ..plain() };
    prefill(bench, "prefill-softcap", [heads, few, tokens], softcap);
    sparse_prefill(bench, heads, few, tokens)?;
    let middle = bench.size(4096, 96);
    let long = bench.size(32_768, 160);
    let short = bench.size(1024, 64);
    let many = bench.size(32, 3);
    decode(bench, Decode::new("decode/4096", 1, middle));
    decode(bench, Decode { one_set: true, ..Decode::new("decode/4096-in-cache", 1, middle) });
    decode(bench, Decode { weights: true, ..Decode::new("decode/4096-with-weights", 1, middle) });
    let sinks = Tensor::ones([heads], &bench.device);
    for (row, scoring) in [
        ("decode/4096-softcap", Scoring { softcap: Some(50.0), ..plain() }),
        ("decode/4096-window", Scoring { window: Some((middle / 4).into()), ..plain() }),
        ("decode/4096-sinks", Scoring { sinks: Some(sinks), ..plain() }),
    ] {
        decode(bench, Decode { scoring, ..Decode::new(row, 1, middle) });
    }
    decode(bench, Decode::new("decode/32768", 1, long));
    decode(bench, Decode { weights: true, ..Decode::new("decode/32768-with-weights", 1, long) });
    decode(bench, Decode::new("decode/1024-batch-32", many, short));
    ragged(bench);
    Ok(())
}

fn prefill(
    bench: &mut Bench,
    row: &'static str,
    [heads, kv_heads, tokens]: [usize; 3],
    scoring: Scoring,
) {
    if !bench.wants(row) {
        return;
    }
    let q = bench.noise([1, heads, tokens, HEAD_DIM], bench.dtype);
    let [k, v] = [(); 2].map(|()| bench.noise([1, kv_heads, tokens, HEAD_DIM], bench.dtype));
    let seen = scoring.window.map_or(tokens, Window::size);
    let kind = scoring.beyond_plain().map(|kind| format!(", {kind}")).unwrap_or_default();
    let case = Case {
        row,
        shape: format!("1×{heads}/{kv_heads}×{tokens}×{HEAD_DIM}, causal{kind}"),
        bytes: (2 * (heads + kv_heads) * tokens * HEAD_DIM) as f64 * bench.number(),
        operations: 4.0 * heads as f64 * (seen * (2 * tokens - seen)) as f64 / 2.0
            * HEAD_DIM as f64,
    };
    let attend = |ops: &dyn Ops| {
        let input = causal([&q, &k, &v].map(Tensor::clone));
        anyhow::Ok(ops.attention(AttentionInput { scoring: scoring.clone(), ..input })?.output)
    };
    bench.run_both(&case, 1, |ops, _| attend(ops), difference);
    if bench.variants.contains(&Variant::Burn) && scoring.is_plain() {
        // Burn's attention knows no grouped queries: keys are expanded for it, outside of what is
        // timed.
        let [k, v] = [&k, &v].map(|x| expand(x, heads));
        let burn = || burn_attention(&q, &k, &v, true);
        let check = || difference(burn(), attend(&Reference)?);
        bench.run(&case, "burn", 1, Some(&check), &|_| keep(burn()));
    }
}

/// Half of what `prefill-grouped` computes: 256 tokens at the beginning of 4 096 and 1 024
/// before a query. Lists are made in every call, as for a layer of a prompt.
fn sparse_prefill(bench: &mut Bench, heads: usize, kv_heads: usize, tokens: usize) -> Result<()> {
    let row = "prefill-sparse";
    if !bench.wants(row) {
        return Ok(());
    }
    let [first, recent] = [tokens / 16, tokens / 4];
    let noise = |heads| bench.noise([1, heads, tokens, HEAD_DIM], bench.dtype);
    let input = SparseAttentionInput {
        attention: causal([noise(heads), noise(kv_heads), noise(kv_heads)]),
        patterns: vec![HeadPattern::AShape { first, recent }; heads],
    };
    let products = input.tiles()?.computed() * SparseTiles::QUERIES * SparseTiles::KEYS;
    let case = Case {
        row,
        shape: format!(
            "1×{heads}/{kv_heads}×{tokens}×{HEAD_DIM}, the first {first} and the last {recent}"
        ),
        bytes: (2 * (heads + kv_heads) * tokens * HEAD_DIM) as f64 * bench.number(),
        operations: 4.0 * (products * HEAD_DIM) as f64,
    };
    let attend = |ops: &dyn Ops, _: usize| anyhow::Ok(ops.sparse_attention(input.clone())?.output);
    bench.run_both(&case, 1, attend, difference);
    Ok(())
}

/// One query per head over a cache.
struct Decode {
    row: &'static str,
    batch: usize,
    entries: usize,
    /// Whether the weights of the entries are wanted too (H2O, EMS, D2O).
    weights: bool,
    /// Whether every call has the same inputs, which then come from the cache of the device.
    /// Otherwise the sets together are far larger, as the layers of a model are.
    one_set: bool,
    scoring: Scoring,
}

impl Decode {
    fn new(row: &'static str, batch: usize, entries: usize) -> Self {
        Self { row, batch, entries, weights: false, one_set: false, scoring: plain() }
    }
}

fn decode(bench: &mut Bench, decode: Decode) {
    let Decode { row, batch, entries, weights, one_set, scoring } = decode;
    if !bench.wants(row) {
        return;
    }
    let (heads, kv_heads) = (bench.size(32, 4), bench.size(8, 2));
    let of_weights = if weights { (batch * heads * entries * 4) as f64 } else { 0.0 };
    let cache = (2 * batch * kv_heads * entries * HEAD_DIM) as f64 * bench.number();
    let sets = if one_set { 1 } else { bench.sets(cache) };
    let q = bench.noise([batch, heads, 1, HEAD_DIM], bench.dtype);
    let shape = [batch, kv_heads, entries, HEAD_DIM];
    let inputs: Vec<[Tensor<4>; 2]> =
        (0..sets).map(|_| [(); 2].map(|()| bench.noise(shape, bench.dtype))).collect();
    let more = [weights.then_some("weights out"), scoring.beyond_plain()];
    let more: String = more.into_iter().flatten().map(|more| format!(", {more}")).collect();
    let case = Case {
        row,
        shape: format!(
            "batch {batch}, {heads}/{kv_heads} heads × {HEAD_DIM}, {entries} entries{more}"
        ),
        bytes: cache + (2 * batch * heads * HEAD_DIM) as f64 * bench.number() + of_weights,
        operations: 4.0 * (batch * heads * entries * HEAD_DIM) as f64,
    };
    let attend = |ops: &dyn Ops, set: usize| {
        let [keys, values] = inputs[set].clone();
        let input = causal([q.clone(), keys, values]);
        let scoring = scoring.clone();
        anyhow::Ok(ops.attention(AttentionInput { column_sums: weights, scoring, ..input })?)
    };
    bench.run_both(&case, sets, attend, |found, expected| {
        let output = difference(found.output, expected.output)?;
        match (found.column_sums, expected.column_sums) {
            (Some(found), Some(expected)) => {
                let sums = difference(found, expected)?;
                Ok((output.0.max(sums.0), output.1.max(sums.1)))
            }
            _ => Ok(output),
        }
    });
    if bench.variants.contains(&Variant::Burn) && !weights && scoring.is_plain() {
        let sets = sets.div_ceil(heads / kv_heads);
        let expanded: Vec<[Tensor<4>; 2]> =
            inputs[..sets].iter().map(|set| set.each_ref().map(|x| expand(x, heads))).collect();
        let burn = |set: usize| {
            let [k, v] = &expanded[set];
            burn_attention(&q, k, v, false)
        };
        let check = || difference(burn(0), attend(&Reference, 0)?.output);
        bench.run(&case, "burn", sets, Some(&check), &|set| keep(burn(set)));
    }
}

/// One query per head over heads of different lengths, 1 024 on average.
fn ragged(bench: &mut Bench) {
    let row = "ragged-decode";
    if !bench.wants(row) || !bench.variants.contains(&Variant::Briquette) {
        return;
    }
    let (heads, kv_heads) = (bench.size(32, 4), bench.size(8, 2));
    let batch = bench.size(32, 2);
    let mean = bench.size(1024, 64);
    // From a quarter of the mean to seven quarters.
    let of_heads = batch * kv_heads;
    let length = |head: usize| mean / 4 + (mean * 3 / 2) * (head % 8) / 7;
    let mut offsets = vec![0_i64];
    for head in 0..of_heads {
        offsets.push(offsets[head] + length(head) as i64);
    }
    let total = offsets[of_heads] as usize;
    let capacity = 32;
    let cache = (2 * total * HEAD_DIM) as f64 * bench.number();
    let [keys, values] = [(); 2].map(|()| bench.noise([total, HEAD_DIM], bench.dtype));
    let [tail_keys, tail_values] =
        [(); 2].map(|()| bench.noise([batch, kv_heads, capacity, HEAD_DIM], bench.dtype));
    let offsets = TensorData::new(offsets, [of_heads + 1]);
    let tail = Tail { keys: tail_keys, values: tail_values, entries: capacity / 2 };
    let input = DecodeInput {
        queries: bench.noise([batch, heads, 1, HEAD_DIM], bench.dtype),
        kv: KvLayout::Ragged(RaggedKv {
            keys: keys.clone(),
            values: values.clone(),
            offsets: Tensor::<1, Int>::from_data(offsets, &bench.device),
            width: length(7),
            positions: None,
            tail: tail.clone(),
            tail_counts: None,
        }),
        scoring: plain(),
        weights: false,
    };
    let case = Case {
        row,
        shape: format!(
            "batch {batch}, {heads}/{kv_heads} heads × {HEAD_DIM}, {} to {} entries a head",
            length(0),
            length(7)
        ),
        bytes: cache + (2 * of_heads * (capacity / 2) * HEAD_DIM) as f64 * bench.number(),
        operations: 4.0 * (total * heads / kv_heads * HEAD_DIM) as f64,
    };
    let ops = bench.ops.clone();
    let attend = || {
        let found = ops.decode(&input)?;
        found.map(|found| found.output).ok_or_else(|| anyhow::anyhow!("no kernel on this device"))
    };
    // The first kv head of the first row, dense.
    let check = || {
        let first = length(0);
        let join = |body: &Tensor<2>, tail: &Tensor<4>| {
            let body = body.clone().narrow(0, 0, first).reshape([1, 1, first, HEAD_DIM]);
            let tail = tail.clone().narrow(0, 0, 1).narrow(1, 0, 1).narrow(2, 0, capacity / 2);
            Tensor::cat(vec![body, tail], 2)
        };
        let group = |x: Tensor<4>| x.narrow(0, 0, 1).narrow(1, 0, heads / kv_heads);
        let (keys, values) = (join(&keys, &tail.keys), join(&values, &tail.values));
        let first = [group(input.queries.clone()), keys, values];
        difference(group(attend()?), Reference.attention(causal(first))?.output)
    };
    // The check borrows the device of the bench, and timing the bench.
    let checked = check().map_err(|error| format!("{error:#}"));
    let check = || checked.clone().map_err(|error| anyhow::anyhow!(error));
    bench.run(&case, "briquette", 1, Some(&check), &|_| keep(attend()?));
}

/// Repeats each kv head as often as it has query heads.
fn expand(x: &Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, kv_heads, entries, channels] = x.dims();
    x.clone()
        .unsqueeze_dim::<5>(2)
        .repeat_dim(2, heads / kv_heads)
        .reshape([batch, heads, entries, channels])
}

fn burn_attention(q: &Tensor<4>, k: &Tensor<4>, v: &Tensor<4>, is_causal: bool) -> Tensor<4> {
    let options = AttentionModuleOptions { is_causal, ..Default::default() };
    module::attention(q.clone(), k.clone(), v.clone(), None, None, options)
}
