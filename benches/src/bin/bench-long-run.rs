//! Long runs: bytes of a cache and of the process, speed, and the error of its sums after many
//! tokens.

use std::{collections::BTreeMap, fs, sync::Arc, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use briquette::{
    Budget, CacheShape, KvCache, Policy, Schedule, methods,
    ops::Statistic,
    position::{NoPositionEncoding, RotaryEmbedding},
};
use briquette_benches::generate::random_profile;
use burn::tensor::{DType, Device, Distribution, Tensor};
use clap::Parser;

/// Decodes many tokens with every method at a fixed budget: one line of Markdown per method, and a
/// failure where memory grows
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long, default_value = "flex")]
    device: String,
    /// Tokens decoded
    #[arg(long, default_value_t = 200_000)]
    tokens: usize,
    /// Tokens to keep
    #[arg(long, default_value_t = 64)]
    budget: usize,
    /// Only these methods, by comma
    #[arg(long, value_delimiter = ',')]
    methods: Vec<String>,
    /// Tokens over which H2O's sums are compared with sums in f64; as many as are decoded if absent
    #[arg(long)]
    sums: Option<usize>,
}

const SHAPE: CacheShape = CacheShape { layers: 1, query_heads: 2, kv_heads: 2, head_dim: 32 };
const PROMPT: usize = 256;
/// Tokens between two compressions, where a method has none in decoding.
const EVERY: usize = 16;

fn main() -> Result<()> {
    let Args { device: name, tokens, budget, methods: wanted, sums: summed } = Args::parse();
    ensure!(tokens >= 100, "{tokens} tokens are too few to see a tenth of them");
    let all = methods();
    for name in &wanted {
        ensure!(all.iter().any(|method| method.name == *name), "there is no method `{name}`");
    }
    let device = briquette::device::open(&name)?;
    let CacheShape { layers, query_heads, kv_heads, head_dim } = SHAPE;
    println!(
        "{name}, {tokens} tokens behind a prompt of {PROMPT}, a budget of {budget}; layers {layers}, query heads {query_heads}, kv heads {kv_heads}, head size {head_dim}\n"
    );
    println!(
        "| method | bytes held, first half | last tenth | process after the first tenth | at the end | tokens a second, first tenth | last tenth | highest position held |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let rope = RotaryEmbedding::new(SHAPE.head_dim, PROMPT + tokens, 10_000.0, &device)?;
    // Its table grows with positions, and is not what is measured.
    rope.tables(PROMPT + tokens);
    let mut grown = Vec::new();
    for method in all {
        let policy = Policy::named(&method.name, None)?;
        let policy = policy.with_default_budget(Budget::Tokens(budget));
        // What needs a second pass over the prompt, or drops nothing, has no fixed budget.
        let chosen = wanted.is_empty() || wanted.contains(&method.name);
        if !chosen || policy.second_pass().is_some() || !policy.holds_budget() {
            continue;
        }
        let policy = match policy.schedule().decode_every {
            Some(_) => policy,
            None => policy.with_schedule(Schedule::always(EVERY)),
        };
        let policy = policy.with_profile(Arc::new(random_profile(SHAPE)));
        let Run { first, last, highest } =
            run(policy, tokens, &rope, &device).with_context(|| method.name.clone())?;
        println!(
            "| {} | {} | {} | {} | {} | {:.0} | {:.0} | {highest} |",
            method.name,
            first.held,
            last.held,
            first.process.map_or_else(|| "-".to_owned(), mebibytes),
            last.process.map_or_else(|| "-".to_owned(), mebibytes),
            first.speed,
            last.speed
        );
        // Where entries are shared or merged, how many are left is chance.
        if last.held > first.held + first.held / 20 {
            grown.push(method.name.clone());
        }
    }
    println!(
        "\nAngles of the last position are at most {:.1e} off.",
        angles(&rope, PROMPT + tokens)?
    );
    let (numbers, off) = sums(summed.unwrap_or(tokens), budget, &device)?;
    println!(
        "H2O's sums of {numbers} entries are at most {off:.1e} of the largest from those in f64."
    );
    if !grown.is_empty() {
        bail!("hold more in the last tenth than in the first half: {}", grown.join(", "));
    }
    Ok(())
}

/// A run of one method.
struct Run {
    first: Tenth,
    last: Tenth,
    /// The highest position held at the end.
    highest: usize,
}

/// A tenth of a run.
struct Tenth {
    /// The most bytes the cache held behind a token; of the first tenth, behind one of the first
    /// half.
    held: usize,
    /// Bytes of memory the process has at its end.
    process: Option<u64>,
    /// Tokens per second.
    speed: f64,
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Bytes of memory this process has, where the system tells.
fn process() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

fn qkv(columns: usize, device: &Device) -> [Tensor<4>; 3] {
    [SHAPE.query_heads, SHAPE.kv_heads, SHAPE.kv_heads].map(|heads| {
        let size = [1, heads, columns, SHAPE.head_dim];
        Tensor::random(size, Distribution::Normal(0.0, 1.0), (device, DType::F32))
    })
}

/// A prompt, then tokens one by one.
fn run(policy: Policy, tokens: usize, rope: &RotaryEmbedding, device: &Device) -> Result<Run> {
    let mut cache = KvCache::new(SHAPE, policy, device)?;
    let step = |cache: &mut KvCache, columns: usize| -> Result<usize> {
        let [q, k, v] = qkv(columns, device);
        let output = cache.transaction(|cache| cache.attend(0, q, k, v, rope))?;
        // Nothing runs ahead, and no number is lost.
        let sum = output.sum().try_into_vec_as::<f32>()?[0];
        ensure!(sum.is_finite(), "an output is {sum}");
        Ok(cache.bytes_held())
    };
    let tenth = |cache: &mut KvCache, tokens: usize| -> Result<Tenth> {
        let start = Instant::now();
        let mut held = 0;
        for _ in 0..tokens {
            held = held.max(step(cache, 1)?);
        }
        let speed = tokens as f64 / start.elapsed().as_secs_f64();
        Ok(Tenth { held, process: process(), speed })
    };
    step(&mut cache, PROMPT)?;
    let mut first = tenth(&mut cache, tokens / 10)?;
    // Buffers of a policy that compresses now and then are as wide as they get behind its first
    // compressions.
    first.held = first.held.max(tenth(&mut cache, tokens / 2 - tokens / 10)?.held);
    tenth(&mut cache, tokens - tokens / 2 - tokens / 10)?;
    let last = tenth(&mut cache, tokens / 10)?;
    let highest = cache.kept_positions(0)?.into_iter().flatten().flatten().max().unwrap_or(0);
    Ok(Run { first, last, highest })
}

/// The largest error of the cosines and sines of the last of so many positions, beside those of its
/// angles in f64.
fn angles(rope: &RotaryEmbedding, positions: usize) -> Result<f64> {
    let (cosines, sines) = rope.tables(positions);
    let last = |table: Tensor<2>| table.narrow(0, positions - 1, 1).try_into_vec_as::<f32>();
    let (cosines, sines) = (last(cosines)?, last(sines)?);
    let frequencies = RotaryEmbedding::inverse_frequencies(rope.head_dim(), 10_000.0);
    let off = frequencies.iter().zip(cosines.iter().zip(&sines)).map(|(frequency, (c, s))| {
        let (sine, cosine) = (f64::from(*frequency) * (positions - 1) as f64).sin_cos();
        (f64::from(*c) - cosine).abs().max((f64::from(*s) - sine).abs())
    });
    Ok(off.fold(0.0, f64::max))
}

/// The sums of weights that H2O keeps of the entries left at the end beside those that are added up
/// in f64: how many, and how far the worst is off, of the largest.
fn sums(tokens: usize, budget: usize, device: &Device) -> Result<(usize, f64)> {
    let mut cache = KvCache::new(SHAPE, Policy::named("h2o", Budget::Tokens(budget))?, device)?;
    let scale = 1.0 / (SHAPE.head_dim as f64).sqrt();
    let heads = SHAPE.kv_heads;
    let mut exact: Vec<BTreeMap<i64, f64>> = vec![BTreeMap::new(); heads];
    for _ in 0..tokens {
        let [q, k, v] = qkv(1, device);
        let (mut keys, mut positions) = (vec![Vec::new(); heads], vec![Vec::new(); heads]);
        if let Some(entries) = cache.entries(0)? {
            let width = entries.columns();
            let held = entries.keys.try_into_vec_as::<f32>()?;
            let places = entries.positions.try_into_vec_as::<i64>()?;
            for head in 0..heads {
                keys[head].extend_from_slice(
                    &held[head * width * SHAPE.head_dim..][..width * SHAPE.head_dim],
                );
                positions[head].extend_from_slice(&places[head * width..][..width]);
            }
        }
        let (queries, new) =
            (q.clone().try_into_vec_as::<f32>()?, k.clone().try_into_vec_as::<f32>()?);
        let seen = cache.tokens_seen().first().copied().unwrap_or(0);
        for head in 0..heads {
            let own = head * SHAPE.head_dim..(head + 1) * SHAPE.head_dim;
            keys[head].extend_from_slice(&new[own.clone()]);
            positions[head].push(seen as i64);
            let query = &queries[own];
            let logits: Vec<f64> = keys[head]
                .chunks(SHAPE.head_dim)
                .map(|key| {
                    scale
                        * query
                            .iter()
                            .zip(key)
                            .map(|(q, k)| f64::from(*q) * f64::from(*k))
                            .sum::<f64>()
                })
                .collect();
            let most = logits.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
            let all: f64 = weights.iter().sum();
            // Of what was dropped nothing is asked any more.
            let before = std::mem::take(&mut exact[head]);
            exact[head] = positions[head]
                .iter()
                .zip(weights)
                .map(|(at, weight)| (*at, before.get(at).unwrap_or(&0.0) + weight / all))
                .collect();
        }
        cache.attend(0, q, k, v, &NoPositionEncoding)?;
    }
    let Some(entries) = cache.entries(0)? else { bail!("nothing is held") };
    let width = entries.columns();
    let Some(sums) = entries.statistics.get(Statistic::Sums) else { bail!("h2o keeps no sums") };
    let sums = sums.try_into_vec_as::<f32>()?;
    let positions = entries.positions.try_into_vec_as::<i64>()?;
    let (mut off, mut largest) = (0.0_f64, 0.0_f64);
    for (at, (sum, position)) in sums.iter().zip(&positions).enumerate() {
        let Some(exact) = exact[at / width].get(position) else {
            bail!("position {position} was not among those held")
        };
        off = off.max((f64::from(*sum) - exact).abs());
        largest = largest.max(*exact);
    }
    Ok((positions.len(), off / largest))
}
