//! Whether a decode step of a cache waits for the device.
//!
//! The device is kept busy for a while, then steps are handed to it. A step that reads nothing back
//! returns long before the device is done; one that reads waits for all that was queued before it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use briquette::{
    Budget, CacheConfig, CacheShape, InputCheck, KvCache, Policy, policy::methods,
    position::RotaryEmbedding,
};
use briquette_benches::generate::random_profile;
use burn::tensor::{DType, Device, Distribution, Tensor};
use clap::Parser;

/// Whether a decode step of a cache waits for the device: one line of Markdown per method.
#[derive(Debug, Parser)]
struct Args {
    /// The device, as `briquette::device::open` names it
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Small sizes: whether it runs
    #[arg(long)]
    quick: bool,
}

/// Decode steps handed over while the device is busy: few, because a queue takes so many launches
/// and then waits.
const STEPS: usize = 1;

fn main() -> Result<()> {
    let Args { device, quick } = Args::parse();
    let name = device.clone();
    let device = briquette::device::open(&device)?;
    let dtype = if device.supports_dtype(DType::BF16) { DType::BF16 } else { DType::F32 };
    let shape = CacheShape { layers: 1, query_heads: 32, kv_heads: 8, head_dim: 128 };
    let shape = if quick { CacheShape { query_heads: 4, kv_heads: 2, ..shape } } else { shape };
    let prompt = if quick { 64 } else { 2048 };
    println!("{name}, {dtype:?}, one step of one layer after {prompt} tokens\n");
    println!("| method | the device was busy for | the host was done after | waits |");
    println!("|---|---|---|---|");
    for info in methods() {
        let method = &info.name;
        match one(method, shape, prompt, dtype, quick, &device) {
            Ok((busy, host)) => println!(
                "| {method} | {:.0} ms | {:.0} ms | {} |",
                busy.as_secs_f64() * 1e3,
                host.as_secs_f64() * 1e3,
                if host.as_secs_f64() > 0.5 * busy.as_secs_f64() { "yes" } else { "no" },
            ),
            Err(error) => println!("| {method} | - | - | {error:#} |"),
        }
    }
    Ok(())
}

fn one(
    method: &str,
    shape: CacheShape,
    prompt: usize,
    dtype: DType,
    quick: bool,
    device: &Device,
) -> Result<(Duration, Duration)> {
    let budget = Budget::Tokens(if quick { 48 } else { 256 });
    let policy = Policy::named(method, None)?.with_default_budget(budget);
    let policy = policy.with_profile(Arc::new(random_profile(shape)));
    let config = CacheConfig::default().with_dtype(dtype).with_input_check(InputCheck::Prompt);
    let rope = RotaryEmbedding::new(shape.head_dim, 8192, 10_000.0, device)?;
    let mut cache = KvCache::with_config(shape, policy, config, device)?;
    let noise = |heads, count| {
        let size = [1, heads, count, shape.head_dim];
        let x = Tensor::<4>::random(size, Distribution::Normal(0.0, 1.0), (device, DType::F32));
        x.cast(dtype)
    };
    let inputs = |count| {
        [shape.query_heads, shape.kv_heads, shape.kv_heads].map(|heads| noise(heads, count))
    };
    let one = inputs(1);
    let attend = |cache: &mut KvCache, [q, k, v]: [Tensor<4>; 3]| cache.attend(0, q, k, v, &rope);
    let step = |cache: &mut KvCache| attend(cache, one.clone());
    attend(&mut cache, inputs(prompt))?;
    // Steps compile what they need, in every form they take between two compressions.
    for _ in 0..24 {
        step(&mut cache)?;
    }
    device.sync()?;

    let side = if quick { 256 } else { 8192 };
    let x =
        Tensor::<2>::random([side, side], Distribution::Default, (device, DType::F32)).cast(dtype);
    let _ = x.clone().matmul(x.clone());
    device.sync()?;
    let start = Instant::now();
    for _ in 0..if quick { 2 } else { 20 } {
        let _ = x.clone().matmul(x.clone());
    }
    let queued = start.elapsed();
    for _ in 0..STEPS {
        step(&mut cache)?;
    }
    let host = start.elapsed() - queued;
    device.sync()?;
    Ok((start.elapsed(), host))
}
