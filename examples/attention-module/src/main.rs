//! An attention module with the usual cache (`before.rs`) and with Briquette (`after.rs`).
//!
//! Both run on the same weights and the same tokens. With the policy `full` they give the same
//! output. With SnapKV the cache holds a part of the prompt, which is printed. The weights are
//! random, so every token gets its share of attention and dropping most of them shows; in a trained
//! model few tokens get most of it.

mod after;
mod attention;
mod before;
mod rope;

use briquette::{Budget, CacheShape, KvCache, Policy, position::RotaryEmbedding};
use burn::tensor::{Distribution, Tensor};

use attention::Attention;
use before::ClassicCache;
use rope::Rope;

const POSITIONS: usize = 1024;
const THETA: f64 = 10_000.0;

fn main() -> briquette::Result<()> {
    let device = briquette::device::open("flex")?;
    device.seed(1);
    let shape = CacheShape { layers: 1, query_heads: 8, kv_heads: 2, head_dim: 32 };
    let attention = Attention::new(shape, &device);

    // A prompt of 300 tokens, then 20 tokens one at a time.
    let normal = Distribution::Normal(0.0, 2.0);
    let tokens = |count| Tensor::random([1, count, 256], normal, &device);
    let calls: Vec<Tensor<3>> = std::iter::once(300).chain([1; 20]).map(tokens).collect();

    let mut classic = ClassicCache::default();
    let rope = Rope::new(shape.head_dim, POSITIONS, THETA, &device);
    let mut expected = Vec::new();
    for x in &calls {
        expected.push(attention.forward_classic(x.clone(), &mut classic, &rope));
    }

    println!("cache               tokens kept     bytes   largest difference: prompt, decoded");
    let bytes = 2 * shape.kv_heads * shape.head_dim * size_of::<f32>() * classic.tokens();
    println!("{:<20}{:>11} {bytes:>9}", "before", classic.tokens());
    let rope = RotaryEmbedding::new(shape.head_dim, POSITIONS, THETA, &device)?;
    for policy in [Policy::full(), Policy::snapkv(Budget::Tokens(64))] {
        let mut cache = KvCache::new(shape, policy, &device)?;
        let mut differences = Vec::new();
        for (x, expected) in calls.iter().zip(&expected) {
            let out = attention.forward(x.clone(), 0, &mut cache, &rope)?;
            let difference = (out - expected.clone()).abs().max();
            differences.push(difference.try_into_scalar::<f32>()?);
        }
        let decoded = differences[1..].iter().copied().fold(0.0, f32::max);
        let (name, kept) = (cache.policy().name(), cache.tokens_kept(0)?[0]);
        let (bytes, prompt) = (cache.bytes_held(), differences[0]);
        println!("{name:<20}{kept:>11} {bytes:>9}   {prompt:>26.1e} {decoded:>8.1e}");

        if name == "snapkv" {
            println!("\nWhat SnapKV holds after 300 + 20 tokens:");
            for (head, positions) in cache.kept_positions(0)?[0].iter().enumerate() {
                println!("  kv head {head}: {}", ranges(positions));
            }
        }
    }
    Ok(())
}

/// `0 1 2 5` as `0-2 5`.
fn ranges(positions: &[usize]) -> String {
    let runs = positions.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(" ")
}
