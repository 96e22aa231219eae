//! Fidelity beside a plain computation in f64, on a tiny random Llama.

#[path = "../../briquette-models/tests/tiny/mod.rs"]
mod tiny;

use briquette::{Budget, Policy};
use briquette_eval::fidelity::{Measured, Reference};
use briquette_models::{Instruction, prefill, reconstruct};
use burn::tensor::{Int, Tensor, TensorData};
use tiny::{Tiny, device, prompt};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 8;
const HIDDEN: usize = 24;
const INNER: usize = 40;
const LAYERS: usize = 2;

const PROMPT: usize = 29;
const CONTINUED: usize = 7;

/// A row of numbers a token.
type Rows = Vec<Vec<f64>>;

/// The tiny Llama, one token and one number after another.
struct Plain<'a> {
    tiny: &'a Tiny,
}

/// Activations of a forward pass, by layer.
struct Trace {
    /// `[layer][token]`, all heads side by side, positions not encoded.
    queries: Vec<Rows>,
    keys: Vec<Rows>,
    values: Vec<Rows>,
    outputs: Vec<Rows>,
    /// `[token][vocabulary]`
    logits: Rows,
}

/// Which entries the query of a token sees, oldest first, itself last; and whether they are encoded
/// at their places in this list, not at their positions in the text.
struct Sight {
    sees: Box<dyn Fn(usize) -> Vec<usize>>,
    recounted: bool,
}

impl Sight {
    fn full() -> Self {
        Self { sees: Box::new(|token| (0..=token).collect()), recounted: false }
    }

    /// Tokens that a cache of `budget` tokens with `sinks` first ones sees of those behind the
    /// prompt.
    fn of(sinks: usize, budget: usize, recounted: bool) -> Self {
        let sees = move |token: usize| -> Vec<usize> {
            if token < PROMPT {
                return (0..=token).collect();
            }
            (0..sinks).chain(token - (budget - sinks)..=token).collect()
        };
        Self { sees: Box::new(sees), recounted }
    }

    fn positions(&self, token: usize) -> Vec<(usize, usize)> {
        let entries = (self.sees)(token).into_iter().enumerate();
        entries.map(|(place, of)| (of, if self.recounted { place } else { of })).collect()
    }
}

impl Plain<'_> {
    fn weight(&self, name: &str) -> Vec<f64> {
        let bytes = &self.tiny.tensors[name].bytes;
        let number = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
        bytes.chunks(4).map(number).collect()
    }

    /// `x · Wᵀ`
    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        let rows = self.weight(name);
        rows.chunks(x.len()).map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + 1e-6).sqrt();
        x.iter().zip(self.weight(name)).map(|(x, weight)| x * scale * weight).collect()
    }

    fn forward(&self, tokens: &[u32], sight: &Sight) -> Trace {
        let table = self.weight("model.embed_tokens.weight");
        let mut x: Rows = tokens
            .iter()
            .map(|token| table[*token as usize * HIDDEN..][..HIDDEN].to_vec())
            .collect();
        let mut trace = Trace {
            queries: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            outputs: Vec::new(),
            logits: Vec::new(),
        };
        for layer in 0..LAYERS {
            let name = |rest: &str| format!("model.layers.{layer}.{rest}.weight");
            let normal: Rows = x.iter().map(|x| self.norm(x, &name("input_layernorm"))).collect();
            let project =
                |of: &str| -> Rows { normal.iter().map(|x| self.linear(x, &name(of))).collect() };
            let [q, k, v] = ["q_proj", "k_proj", "v_proj"]
                .map(|projection| project(&format!("self_attn.{projection}")));
            let outputs: Rows = (0..tokens.len())
                .map(|token| output(&q[token], &k, &v, &sight.positions(token)))
                .collect();
            for (x, out) in x.iter_mut().zip(&outputs) {
                add(x, &self.linear(out, &name("self_attn.o_proj")));
                let normal = self.norm(x, &name("post_attention_layernorm"));
                let gate = self.linear(&normal, &name("mlp.gate_proj"));
                let up = self.linear(&normal, &name("mlp.up_proj"));
                let inner: Vec<f64> =
                    gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
                assert_eq!(inner.len(), INNER);
                add(x, &self.linear(&inner, &name("mlp.down_proj")));
            }
            trace.queries.push(q);
            trace.keys.push(k);
            trace.values.push(v);
            trace.outputs.push(outputs);
        }
        trace.logits = x
            .iter()
            .map(|x| self.linear(&self.norm(x, "model.norm.weight"), "model.embed_tokens.weight"))
            .collect();
        trace
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Rotates pairs `(i, i + DIM / 2)` of one head.
fn rotated(x: &[f64], position: usize) -> Vec<f64> {
    let mut y = x.to_vec();
    for i in 0..DIM / 2 {
        let angle = position as f64 / 10_000f64.powf(2.0 * i as f64 / DIM as f64);
        let (sin, cos) = angle.sin_cos();
        y[i] = x[i] * cos - x[i + DIM / 2] * sin;
        y[i + DIM / 2] = x[i + DIM / 2] * cos + x[i] * sin;
    }
    y
}

fn head(x: &[f64], head: usize) -> &[f64] {
    &x[head * DIM..][..DIM]
}

/// The weights of one query head over the entries it sees, and where each is encoded.
fn weights(q: &[f64], keys: &Rows, query_head: usize, sees: &[(usize, usize)]) -> Vec<f64> {
    let kv_head = query_head / (HEADS / KV_HEADS);
    let own = sees.last().unwrap().1;
    let q = rotated(head(q, query_head), own);
    let scores: Vec<f64> = sees
        .iter()
        .map(|&(token, position)| {
            let k = rotated(head(&keys[token], kv_head), position);
            q.iter().zip(&k).map(|(a, b)| a * b).sum::<f64>() / (DIM as f64).sqrt()
        })
        .collect();
    let sum: f64 = scores.iter().map(|score| score.exp()).sum();
    scores.iter().map(|score| score.exp() / sum).collect()
}

fn output(q: &[f64], keys: &Rows, values: &Rows, sees: &[(usize, usize)]) -> Vec<f64> {
    let mut out = vec![0.0; HEADS * DIM];
    for query_head in 0..HEADS {
        let kv_head = query_head / (HEADS / KV_HEADS);
        let weights = weights(q, keys, query_head, sees);
        for (weight, &(token, _)) in weights.iter().zip(sees) {
            let value = head(&values[token], kv_head);
            for (out, value) in out[query_head * DIM..].iter_mut().zip(value) {
                *out += weight * value;
            }
        }
    }
    out
}

fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn relative_error(full: &[Vec<f64>], compressed: &[Vec<f64>]) -> f64 {
    let share = |(full, compressed): (&Vec<f64>, &Vec<f64>)| {
        let difference: Vec<f64> = full.iter().zip(compressed).map(|(a, b)| a - b).collect();
        length(&difference) / (length(full) + 1e-6)
    };
    full.iter().zip(compressed).map(share).sum::<f64>() / full.len() as f64
}

fn probabilities(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

fn kl(full: &[f64], compressed: &[f64]) -> f64 {
    let (p, q) = (probabilities(full), probabilities(compressed));
    p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum()
}

fn wide(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| f64::from(*number)).collect()
}

fn most_likely(logits: &[f64]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 2e-5, "{what}: {found} for {expected}");
    }
}

fn measured(tokens: &[u32], policy: Policy) -> Measured {
    let model = Tiny::new().load();
    Reference::new(&model, tokens, PROMPT).unwrap().measure(policy).unwrap()
}

#[test]
fn the_full_cache_is_itself() {
    let tokens = prompt(3, PROMPT + CONTINUED);
    let found = measured(&tokens, Policy::full());
    assert_eq!(found.output_error, [0.0; LAYERS]);
    assert_eq!(found.end_to_end_error, [0.0; LAYERS]);
    assert_eq!(found.kl, [0.0; CONTINUED]);
    assert_eq!(found.agreement, 1.0);
    assert!(found.overlap.is_empty() && found.mean_overlap().is_none(), "{found:?}");
    let all: Vec<usize> = (0..PROMPT).collect();
    assert_eq!(found.kept, vec![vec![all; KV_HEADS]; LAYERS]);
    // Keys and values in f32.
    let token = 2 * LAYERS * KV_HEADS * DIM * 4;
    assert_eq!(found.cache_after_prompt.full, PROMPT * token);
    assert_eq!(found.cache.full, (PROMPT + CONTINUED) * token);
}

#[test]
fn windows_agree_with_a_plain_forward_in_f64() {
    let tiny = Tiny::new();
    let plain = Plain { tiny: &tiny };
    let tokens = prompt(4, PROMPT + CONTINUED);
    let full = plain.forward(&tokens, &Sight::full());
    for (sinks, budget, policy) in [
        (0, 9, Policy::local_window(Budget::Tokens(9))),
        (4, 11, Policy::streaming_llm(Budget::Tokens(11))),
    ] {
        let sight = Sight::of(sinks, budget, sinks > 0);
        let compressed = plain.forward(&tokens, &sight);
        let name = policy.name().to_owned();
        let found = measured(&tokens, policy);

        let behind = PROMPT..PROMPT + CONTINUED;
        let isolated: Vec<f64> = (0..LAYERS)
            .map(|layer| {
                let outputs: Rows = behind
                    .clone()
                    .map(|token| {
                        let q = &full.queries[layer][token];
                        let (keys, values) = (&full.keys[layer], &full.values[layer]);
                        output(q, keys, values, &sight.positions(token))
                    })
                    .collect();
                relative_error(&full.outputs[layer][behind.clone()], &outputs)
            })
            .collect();
        let end_to_end: Vec<f64> = (0..LAYERS)
            .map(|layer| {
                let [full, compressed] =
                    [&full, &compressed].map(|trace| &trace.outputs[layer][behind.clone()]);
                relative_error(full, compressed)
            })
            .collect();
        // What is compared is not nothing, and the layers above the first inherit.
        assert!(isolated.iter().all(|error| *error > 0.05), "{isolated:?}");
        assert!((isolated[1] - end_to_end[1]).abs() > 1e-3, "{isolated:?} {end_to_end:?}");
        assert_close(&found.output_error, &isolated, &format!("{name} isolated"));
        assert_close(&found.end_to_end_error, &end_to_end, &format!("{name} end to end"));

        let logits = |trace: &Trace| trace.logits[behind.clone()].to_vec();
        let pairs: Vec<(Vec<f64>, Vec<f64>)> =
            logits(&full).into_iter().zip(logits(&compressed)).collect();
        let kl: Vec<f64> = pairs.iter().map(|(full, compressed)| kl(full, compressed)).collect();
        assert!(kl.iter().any(|kl| *kl > 1e-3), "{kl:?}");
        assert_close(&wide(&found.kl), &kl, &format!("{name} KL"));
        let agreed = pairs.iter().filter(|(a, b)| most_likely(a) == most_likely(b)).count();
        assert_eq!(found.agreement, agreed as f64 / CONTINUED as f64);

        let kept: Vec<usize> = (0..sinks).chain(PROMPT - (budget - sinks)..PROMPT).collect();
        assert_eq!(found.kept, vec![vec![kept.clone(); KV_HEADS]; LAYERS]);
        let of_head = |layer, head| share(&oracle(&full, layer, head, budget), &kept);
        let of_layer = |layer| (0..KV_HEADS).map(|head| of_head(layer, head)).collect();
        let overlap: Vec<Vec<f64>> = (0..LAYERS).map(of_layer).collect();
        assert_eq!(found.overlap, overlap, "{name}");
        let mean = overlap.iter().flatten().sum::<f64>() / (LAYERS * KV_HEADS) as f64;
        assert!(mean > 0.0 && mean < 1.0, "{overlap:?}");
        assert!((found.mean_overlap().unwrap() - mean).abs() < 1e-12);
    }
}

/// The `count` tokens of the prompt that the tokens behind it attend to most.
fn oracle(full: &Trace, layer: usize, kv_head: usize, count: usize) -> Vec<usize> {
    let mut received = [0.0; PROMPT];
    for token in PROMPT..PROMPT + CONTINUED {
        let sees: Vec<(usize, usize)> = (0..=token).map(|token| (token, token)).collect();
        for query_head in kv_head * 2..kv_head * 2 + 2 {
            let q = &full.queries[layer][token];
            let weights = weights(q, &full.keys[layer], query_head, &sees);
            received.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight);
        }
    }
    let mut order: Vec<usize> = (0..PROMPT).collect();
    order.sort_by(|a, b| received[*b].total_cmp(&received[*a]));
    order.truncate(count);
    order
}

fn share(oracle: &[usize], kept: &[usize]) -> f64 {
    kept.iter().filter(|token| oracle.contains(token)).count() as f64 / kept.len() as f64
}

/// The caches are filled with what the full run passes on, not by a run of their own: that makes no
/// difference to any method.
#[test]
fn filled_caches_are_those_of_a_run_of_their_own() {
    let model = Tiny::new().load();
    let tokens = prompt(5, PROMPT + CONTINUED);
    let reference = Reference::new(&model, &tokens, PROMPT).unwrap();
    let row = |token: u32| -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(vec![token], [1, 1]), &device())
    };
    let logits = |policy: Policy| -> Vec<Vec<f64>> {
        let mut cache = model.cache(policy).unwrap();
        let text = [&tokens[..PROMPT]];
        prefill(&model, &text, &mut cache, None).unwrap();
        reconstruct(&model, &text, &mut cache, &Instruction::default()).unwrap();
        let step = |token: &u32| {
            let logits = model.forward_last(row(*token), &mut cache).unwrap();
            logits.try_into_vec_as::<f64>().unwrap()
        };
        tokens[PROMPT..].iter().map(step).collect()
    };
    let full = logits(Policy::full());
    let budget = Budget::Tokens(12);
    let window = |policy: Policy| policy.with_window(4);
    for policy in [
        Policy::h2o(budget),
        Policy::tova(budget),
        window(Policy::snapkv(budget)),
        window(Policy::adakv(budget)),
        Policy::d2o(budget),
        Policy::ems(budget).with_recent(briquette::policy::Recent::Tokens(4)),
        Policy::kvmerger(budget),
        Policy::kvzip(budget),
        Policy::kvzip_plus(budget),
        Policy::kvcompose(budget),
        Policy::kivi(4),
    ] {
        let name = policy.name().to_owned();
        let own = logits(policy.clone());
        let found = reference.measure(policy).unwrap();
        let kl: Vec<f64> = full.iter().zip(&own).map(|(full, own)| kl(full, own)).collect();
        assert_close(&wide(&found.kl), &kl, &name);
        if name != "kivi" {
            let held: Vec<usize> = found.kept.iter().flatten().map(Vec::len).collect();
            assert!(held.iter().all(|held| *held < PROMPT), "{name}: {held:?}");
            assert!(found.cache.bytes > 0 && found.mean_kl() > 0.0, "{name}");
        } else {
            assert!(found.overlap.is_empty(), "{found:?}");
        }
    }
}

#[test]
fn windows_without_a_prompt_or_a_token_behind_it_are_refused() {
    let model = Tiny::new().load();
    let tokens = prompt(6, 140);
    for (window, prompt, reason) in [
        (&tokens[..20], 0, "prompt: at least 1"),
        (&tokens[..20], 20, "tokens: a window of 20 tokens has none behind its prompt of 20"),
        (&tokens[..20], 21, "prompt of 21"),
        (&tokens[..], 10, "140 tokens"),
    ] {
        let error = Reference::new(&model, window, prompt).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let reference = Reference::new(&model, &tokens[..20], 12).unwrap();
    assert!(reference.measure(Policy::headkv(Budget::Tokens(40))).is_err());
}
