//! A cache of Briquette in two decoders of the published crate `bunsen` 0.41, as it stands.
//!
//! bunsen's attention takes its own `KVCache`. That is a struct with private fields, and no trait
//! stands for it: `KVCacheModel` hands out its configuration. So no other cache can be passed to
//! `Qwen3Model::forward_hidden` or `TextDecoder::forward_cached`. But weights, norms and blocks are
//! public, and the decoders here are written over them:
//!
//! - `qwen3`: the model goes on rotating queries and keys. The attention is the cache's, or
//!   bunsen's own over what the cache hands back.
//! - `whisper`: beams are reordered by `KvCache::select_rows` where bunsen has `KVCache::reorder`.
//!   The audio is a second cache, which all beams read.
//!
//! Under `full` both give the logits of bunsen's own cache. Sums are taken in another order, so
//! they agree to [`TOLERANCE`] and not to the bit.

mod qwen3;
mod whisper;

use briquette::{Budget, KvCache, Policy, Result};
use burn::tensor::Tensor;

const PROMPT: usize = 64;
const DECODED: usize = 64;
const TOKENS: usize = PROMPT + DECODED;
const VOCABULARY: usize = 256;
const BUDGET: usize = 40;

/// Logits of both decoders go up to some 30, where f32 has steps of 2e-6.
const TOLERANCE: f32 = 1e-4;

/// KIVI would leave the last 128 tokens as they are, which are all there are.
const POLICIES: [&str; 10] = [
    "streaming-llm",
    "snapkv",
    "h2o",
    "tova",
    "knorm",
    "keydiff",
    "adakv",
    "d2o",
    "ems",
    "kivi:residual=32",
];

fn main() -> Result<()> {
    let device = briquette::device::open("flex")?;
    device.seed(1);
    qwen3::run(&device)?;
    println!();
    whisper::run(&device)
}

/// The policy of this text, with the budget if it takes one.
fn policy(text: &str) -> Result<Policy> {
    Ok(Policy::parse(text, None)?.with_default_budget(Budget::Tokens(BUDGET)))
}

/// Starts and lengths of calls: a prompt, then one token at a time.
fn calls() -> impl Iterator<Item = (usize, usize)> {
    std::iter::once((0, PROMPT)).chain((PROMPT..TOKENS).map(|token| (token, 1)))
}

/// The largest difference of logits.
fn apart(found: Tensor<3>, expected: Tensor<3>) -> Result<f32> {
    Ok((found - expected).abs().max().try_into_scalar()?)
}

/// Prints a row: what a cache holds at the end, and how far the last logits are off.
///
/// # Panics
/// If `full` is off anywhere, or a policy did not do what it is for.
fn print(name: &str, cache: &KvCache, apart: &[f32]) -> Result<()> {
    let layers = (0..cache.shape().layers).map(|layer| cache.entries_by_head(layer));
    let heads = layers.collect::<Result<Vec<_>>>()?.concat().concat();
    let entries = heads.iter().sum::<usize>() as f64 / heads.len() as f64;
    let last = apart[apart.len() - 1];
    println!("{name:<24}{entries:>8.1}{:>12}{last:>14.1e}", cache.bytes_held());
    let policy = cache.policy();
    if policy.name() == "full" {
        let most = apart.iter().copied().fold(0.0, f32::max);
        assert!(most < TOLERANCE, "{name}: logits are {most} off");
    }
    assert!(apart.iter().all(|apart| apart.is_finite()), "{name}: {apart:?}");
    assert_eq!(entries < TOKENS as f64, policy.takes_budget(), "{name}: {entries} entries a head");
    Ok(())
}

fn print_head(decoder: &str) {
    println!("{decoder:<24}{:>8}{:>12}{:>14}", "entries", "bytes held", "last logits");
}
