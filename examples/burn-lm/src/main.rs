//! A decoder with the key-value cache of [burn-lm](https://github.com/tracel-ai/burn-lm)
//! (`before.rs`), and with one of the same shape that a policy compresses (`after.rs`).
//!
//! burn-lm's cache returns the keys and values of all tokens, and the attention reads them. A
//! policy decides by what queries read, so here the cache takes the queries too and returns the
//! output of the attention. The model goes on rotating queries and keys itself.
//!
//! Of the model's own lines, those of `Transformer` and `Attention` in both files, nine change: two
//! call the cache, two are the loop over the layers and what it hands to each, the other five say
//! that a call may fail and what type the cache has. Eleven go: the mask, and the kv heads that
//! were repeated for it.
//!
//! Both run on the same random weights and the same prompt. Under the policy `full` the tokens and
//! their logits are those of the cache before; under others the cache holds a part of the prompt.

mod after;
mod before;
mod decoder;

use briquette::{Budget, Policy, Result};
use burn::{
    nn::{RotaryEncoding, RotaryEncodingConfig},
    tensor::{Device, Int, Tensor, TensorData},
};

use decoder::{HEAD_DIM, Transformer, VOCABULARY};

const PROMPT: usize = 200;
const GENERATED: usize = 24;

/// Generated tokens, and the logits that each was the highest of.
struct Generated {
    tokens: Vec<i64>,
    logits: Vec<f32>,
}

struct Run {
    model: Transformer,
    rope: RotaryEncoding,
    device: Device,
}

impl Run {
    fn new() -> Result<Self> {
        let device = briquette::device::open("flex")?;
        device.seed(1);
        let model = Transformer::new(&device);
        let rope = RotaryEncodingConfig::new(1024, HEAD_DIM).init(&device);
        Ok(Self { model, rope, device })
    }

    /// Generates greedily behind a prompt. `forward` takes tokens, `[1, tokens]`, and returns their
    /// logits.
    fn generate(
        &self,
        mut forward: impl FnMut(Tensor<2, Int>) -> Result<Tensor<3>>,
    ) -> Result<Generated> {
        let mut next: Vec<i64> = (0..PROMPT as i64).map(|at| (at * at + 7 * at) % 251).collect();
        let mut generated = Generated { tokens: Vec::new(), logits: Vec::new() };
        while generated.tokens.len() < GENERATED {
            let count = next.len();
            let tokens = TensorData::new(next, [1, count]);
            let logits = forward(Tensor::from_data(tokens, &self.device))?;
            let last = logits.narrow(1, count - 1, 1).reshape([VOCABULARY]);
            let token = last.clone().argmax(0).try_into_scalar::<i64>()?;
            generated.logits.extend(last.try_into_vec_as::<f32>()?);
            generated.tokens.push(token);
            next = vec![token];
        }
        Ok(generated)
    }

    fn before(&self) -> Result<Generated> {
        let mut cache = before::TransformerCache::new(&self.device);
        let generated = self.generate(|tokens| {
            let start = cache.len();
            Ok(self.model.forward_before(tokens, &mut cache, &self.rope, start))
        });
        cache.reset();
        generated
    }

    fn after(&self, policy: Policy) -> Result<(Generated, usize)> {
        let mut cache = after::TransformerCache::new(policy, &self.device)?;
        let generated = self.generate(|tokens| {
            let start = cache.len();
            self.model.forward_after(tokens, &mut cache, &self.rope, start)
        })?;
        let kept = cache.kept()?;
        cache.reset();
        Ok((generated, kept))
    }
}

fn main() -> Result<()> {
    let run = Run::new()?;
    let before = run.before()?;
    println!("cache         tokens kept   largest difference of a logit   tokens");
    println!("{:<14}{:>11}   {:>29}   {:?}", "before", PROMPT + GENERATED - 1, "", before.tokens);
    let budget = Budget::Tokens(64);
    for policy in [Policy::full(), Policy::snapkv(budget), Policy::tova(budget)] {
        let name = policy.name().to_owned();
        let (after, kept) = run.after(policy)?;
        let apart = furthest(&before, &after);
        println!("{name:<14}{kept:>11}   {apart:>29.1e}   {:?}", after.tokens);
    }
    Ok(())
}

/// The largest difference of a logit, up to the first token that differs.
fn furthest(a: &Generated, b: &Generated) -> f32 {
    let same = a.tokens.iter().zip(&b.tokens).take_while(|(a, b)| a == b).count();
    let until = (same + 1) * VOCABULARY;
    let apart = a.logits.iter().zip(&b.logits).take(until).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Under `full` the cache gives what the one before gives: the same tokens, and logits but for
    /// the order of sums.
    #[test]
    fn full_is_the_cache_before() {
        let run = Run::new().unwrap();
        let before = run.before().unwrap();
        let (after, kept) = run.after(Policy::full()).unwrap();
        assert!(furthest(&before, &after) < 1e-5);
        assert_eq!((after.tokens, kept), (before.tokens, PROMPT + GENERATED - 1));
    }
}
