//! A decoder with the key-value cache of [burn-lm](https://github.com/tracel-ai/burn-lm), and with
//! two that policies compress.
//!
//! burn-lm is in no registry and follows Burn's main branch, so this is not its source. It has the
//! seam of its `burn-lm-llama` (August 2026): a `TransformerCache` of one `KeyValueCache` a layer,
//! whose `forward` takes rotated keys and values and hands all of them back, and an attention that
//! makes its mask from `len` where it is given none.
//!
//! - `drop_in`: a cache with the same methods, over `KvCache::update`. No line of the attention
//!   changes: the file `before/attention.rs` is compiled with both. It serves policies that look at
//!   keys and values alone.
//! - `any_policy`: `KvCache::attend` computes the attention, for every policy. The attention gets
//!   14 lines and loses 38, with its mask and repeated kv heads. All functions then return a
//!   `Result`, and one cache serves all layers.
//!
//! All run on the same random weights and the same prompt. Under the policy `full` both give the
//! tokens and logits of the cache before; under others they hold a part of the prompt, or less of
//! each token.

mod any_policy;
mod before;
mod decoder;
mod drop_in;

use briquette::{Budget, Policy, Result};
use burn::{
    nn::{RotaryEncoding, RotaryEncodingConfig},
    tensor::{Device, Int, Tensor, TensorData},
};

use decoder::{HEAD_DIM, Transformer, VOCABULARY};

const PROMPT: usize = 200;
const GENERATED: usize = 24;
const BUDGET: usize = 64;

/// Policies that look at keys and values alone.
const DROP_IN: [&str; 8] =
    ["full", "local-window", "knorm", "keydiff", "lagkv", "random", "fp8", "kivi"];
const ANY_POLICY: [&str; 11] = [
    "full",
    "streaming-llm",
    "snapkv",
    "h2o",
    "tova",
    "knorm",
    "keydiff",
    "adakv",
    "d2o",
    "ems",
    "kivi",
];

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

    /// Generates greedily behind a prompt. `forward` takes tokens, `[1, tokens]`, and the position
    /// of the first, and returns their logits.
    fn generate(
        &self,
        mut forward: impl FnMut(Tensor<2, Int>, usize) -> Result<Tensor<3>>,
    ) -> Result<Generated> {
        let mut next: Vec<i64> = (0..PROMPT as i64).map(|at| (at * at + 7 * at) % 251).collect();
        let mut generated = Generated { tokens: Vec::new(), logits: Vec::new() };
        let mut start = 0;
        while generated.tokens.len() < GENERATED {
            let count = next.len();
            let tokens = TensorData::new(next, [1, count]);
            let logits = forward(Tensor::from_data(tokens, &self.device), start)?;
            start += count;
            let last = logits.narrow(1, count - 1, 1).reshape([VOCABULARY]);
            let token = last.clone().argmax(0).try_into_scalar::<i64>()?;
            generated.logits.extend(last.try_into_vec_as::<f32>()?);
            generated.tokens.push(token);
            next = vec![token];
        }
        Ok(generated)
    }

    fn before(&self) -> Result<Generated> {
        let mut cache = before::cache::TransformerCache::new(PROMPT + GENERATED, &self.device);
        self.generate(|tokens, start| {
            let mask = cache.prepare(tokens.dims()[1]);
            let Self { model, rope, .. } = self;
            Ok(before::attention::forward(model, tokens, &mut cache, rope, start, mask))
        })
    }

    /// What is generated, and the tokens kept in the first layer.
    fn drop_in(&self, policy: &Policy) -> Result<(Generated, usize)> {
        let mut cache = drop_in::cache::TransformerCache::new(policy, &self.device)?;
        let generated = self.generate(|tokens, start| {
            let mask = cache.prepare(tokens.dims()[1]);
            let Self { model, rope, .. } = self;
            Ok(drop_in::attention::forward(model, tokens, &mut cache, rope, start, mask))
        })?;
        Ok((generated, cache.kept()?))
    }

    /// What is generated, and the tokens kept in the first layer.
    fn any_policy(&self, policy: Policy) -> Result<(Generated, usize)> {
        let Self { model, rope, device } = self;
        let mut cache = any_policy::cache::TransformerCache::new(policy, rope, device)?;
        let generated = self.generate(|tokens, start| {
            any_policy::attention::forward(model, tokens, &mut cache, rope, start)
        })?;
        Ok((generated, cache.kept()?))
    }
}

fn main() -> Result<()> {
    let run = Run::new()?;
    let before = run.before()?;
    println!("cache        policy          tokens kept   largest difference of a logit   tokens");
    let row = |cache: &str, policy: &str, kept: usize, apart: f32, tokens: &[i64]| {
        println!("{cache:<12} {policy:<14}{kept:>13}   {apart:>29.1e}   {:?}", &tokens[..8]);
        assert!(policy != "full" || (apart < 1e-5 && tokens == before.tokens), "{cache} differs");
        assert!(apart.is_finite(), "{cache}, {policy}");
    };
    row("before", "-", PROMPT + GENERATED - 1, 0.0, &before.tokens);
    for name in DROP_IN {
        let (after, kept) = run.drop_in(&policy(name)?)?;
        row("drop_in", name, kept, furthest(&before, &after), &after.tokens);
    }
    for name in ANY_POLICY {
        let (after, kept) = run.any_policy(policy(name)?)?;
        row("any_policy", name, kept, furthest(&before, &after), &after.tokens);
    }
    Ok(())
}

/// The method of this name, with the budget if it takes one.
fn policy(name: &str) -> Result<Policy> {
    Ok(Policy::named(name, None)?.with_default_budget(Budget::Tokens(BUDGET)))
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

    /// Under `full` both caches give what the one before gives: the same tokens, and logits but for
    /// the order of sums.
    #[test]
    fn full_is_the_cache_before() {
        let run = Run::new().unwrap();
        let before = run.before().unwrap();
        let drop_in = run.drop_in(&Policy::full()).unwrap();
        let any_policy = run.any_policy(Policy::full()).unwrap();
        for (after, kept) in [drop_in, any_policy] {
            assert!(furthest(&before, &after) < 1e-5);
            assert_eq!((&after.tokens, kept), (&before.tokens, PROMPT + GENERATED - 1));
        }
    }

    /// The lines of code of `one` that `other` does not have, each as often as it is there.
    fn only_in(one: &str, other: &str) -> usize {
        let code = |text: &str| -> Vec<String> {
            let lines = text.lines().map(str::trim);
            let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
            code.map(str::to_owned).collect()
        };
        let mut others = code(other);
        let is_new = |line: &String| match others.iter().position(|other| other == line) {
            Some(place) => {
                others.swap_remove(place);
                false
            }
            None => true,
        };
        code(one).into_iter().filter(is_new).count()
    }

    /// The numbers of lines that the documentation above and the book say.
    #[test]
    fn changed_lines_are_counted() {
        let before = include_str!("before/attention.rs");
        let after = include_str!("any_policy/attention.rs");
        let (new, gone) = (only_in(after, before), only_in(before, after));
        assert_eq!((new, gone), (14, 38));
        let page = include_str!("../../../docs/src/add-to-your-model.md");
        for text in [include_str!("main.rs"), page] {
            let text = text.replace("//!", "");
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(&format!("gets {new} lines and loses {gone}")));
        }
    }
}
