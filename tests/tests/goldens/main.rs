//! The embedded model against `transformers`, the methods against kvpress and against their
//! authors' code.
//!
//! The scripts in `goldens/` write the fixtures; the README.md beside them describes the fields,
//! and where other code differs from this project.

mod cake;
mod cam;
mod headkv;
mod kivi;
mod kvpress;
mod kvpress_passes;
mod kvpress_scores;
mod kvpress_think;
mod model;

use std::{
    fmt::Debug,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use briquette::{
    CacheShape, KvCache, LayerView, Policy,
    position::NoPositionEncoding,
    score::{AttentionRequest, Scorer},
};
use briquette_models::{Model, prefill};
use briquette_tests::backends::host;
use burn::tensor::{DType, Int, Tensor, TensorData};
use serde::{Deserialize, de::DeserializeOwned};

/// A fixture that is one list.
#[derive(Deserialize)]
struct Cases<T> {
    cases: Vec<T>,
}

/// A prompt and what is kept of it.
#[derive(Deserialize)]
struct Prompt {
    tokens: Vec<u32>,
    margin: f64,
    /// `[layer][kv_head]`
    kept: Vec<Vec<Vec<usize>>>,
}

/// One more token after a compression, and its logits.
#[derive(Deserialize)]
struct Next {
    next_token: u32,
    last_logits_after: Vec<f64>,
}

/// A press of kvpress on a prompt.
#[derive(Deserialize)]
struct Case<P> {
    /// Empty where a fixture has only one.
    #[serde(default)]
    press: String,
    /// The press inside, of a wrapper.
    of: Option<String>,
    /// By kvpress's names.
    params: P,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
    #[serde(flatten)]
    next: Option<Next>,
}

impl<P: Debug> Case<P> {
    fn place(&self) -> String {
        let Self { press, params, prompt, .. } = self;
        format!("{press} {params:?}, {} tokens, margin {}", prompt.tokens.len(), prompt.margin)
    }

    /// Holds a policy to what is kept there, and to one more token where there is one.
    fn compare(&self, policy: &Policy) {
        let (compressed, place) = (Compressed::new(policy, &self.prompt.tokens), self.place());
        compressed.assert_kept(&self.prompt, &place);
        if let Some(next) = &self.next {
            compressed.assert_next(next, &place);
        }
    }
}

/// The tokens of so many that kvpress keeps.
fn kept_of(tokens: usize, compression_ratio: f64) -> usize {
    (tokens as f64 * (1.0 - compression_ratio)) as usize
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn fixture<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cases of a fixture that is one list, of which there must be so many: one that was lost is
/// not one that passed.
fn cases<T: DeserializeOwned>(name: &str, count: usize) -> Vec<T> {
    let Cases { cases } = fixture(name);
    assert_eq!(cases.len(), count, "the cases of {name}");
    cases
}

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| {
        Model::load(repository().join("models/ember-7m"), &host(), DType::F32).unwrap()
    })
}

/// Feeds a token after all others and returns its logits.
fn feed(token: u32, cache: &mut KvCache) -> Tensor<2> {
    let token = TensorData::new(vec![i64::from(token)], [1, 1]);
    let token = Tensor::<2, Int>::from_data(token, &model().device());
    model().forward_last(token, cache).unwrap()
}

/// Tolerance of a model's results: rounding adds up over its layers.
const TOLERANCE: f64 = 1e-4;

fn assert_logits(found: Tensor<2>, expected: &[f64], place: &str) {
    let found: Vec<f32> = found.try_into_vec_as().unwrap();
    assert_eq!(found.len(), expected.len(), "{place}");
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        assert!(off <= TOLERANCE, "logit {token} is {found}, expected {expected}, {place}");
    }
}

/// A policy's own scorer, whose scores can be looked at afterwards.
#[derive(Debug)]
struct Recording {
    policy: Policy,
    /// One a layer, `[1, kv_heads, tokens]`.
    scores: Arc<Mutex<Vec<Tensor<3>>>>,
}

impl Scorer for Recording {
    fn name(&self) -> &str {
        "recording"
    }

    fn observes(&self) -> AttentionRequest {
        self.policy.scorer().observes()
    }

    fn reads_output_weights(&self) -> bool {
        self.policy.scorer().reads_output_weights()
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        let scores = self.policy.scorer().score(view)?;
        self.scores.lock().unwrap().push(scores.clone());
        Ok(scores)
    }
}

/// A prompt the model was given under a policy.
struct Compressed {
    cache: KvCache,
    /// One a layer, `[1, kv_heads, tokens]`.
    scores: Vec<Tensor<3>>,
    tokens: usize,
}

impl Compressed {
    fn new(policy: &Policy, tokens: &[u32]) -> Self {
        let scores = Arc::default();
        let recording = Recording { policy: policy.clone(), scores: Arc::clone(&scores) };
        let mut cache = model().cache(policy.clone().with_scorer(recording)).unwrap();
        prefill(model(), &[tokens], &mut cache, None).unwrap();
        let scores = scores.lock().unwrap().clone();
        Self { cache, scores, tokens: tokens.len() }
    }

    /// Numbers of entries that each head keeps, `[layer][kv_head]`.
    fn counts(&self) -> Vec<Vec<usize>> {
        counts(&self.cache)
    }

    /// The positions each head of a layer keeps.
    fn kept(&self, layer: usize) -> Vec<Vec<usize>> {
        self.cache.kept_positions(layer).unwrap().remove(0)
    }

    fn assert_kept(&self, prompt: &Prompt, place: &str) {
        for layer in 0..prompt.kept.len() {
            self.assert_kept_in(layer, prompt, place);
        }
    }

    fn assert_kept_in(&self, layer: usize, prompt: &Prompt, place: &str) {
        let kept = self.kept(layer);
        assert_eq!(kept.len(), prompt.kept[layer].len(), "layer {layer}, {place}");
        for (head, (found, expected)) in kept.iter().zip(&prompt.kept[layer]).enumerate() {
            if found == expected {
                continue;
            }
            let scores: Vec<f32> = self.scores[layer].clone().try_into_vec_as().unwrap();
            let score = |position: &usize| (*position, scores[head * self.tokens + position]);
            let only_in = |one: &[usize], other: &[usize]| -> Vec<(usize, f32)> {
                one.iter().filter(|position| !other.contains(position)).map(score).collect()
            };
            panic!(
                "layer {layer}, kv head {head}: only kept here {:?}, only kept there {:?} (position, \
                 score here); smallest margin there {:e}; {place}",
                only_in(found, expected),
                only_in(expected, found),
                prompt.margin,
            );
        }
    }

    fn assert_next(mut self, next: &Next, place: &str) {
        assert_logits(feed(next.next_token, &mut self.cache), &next.last_logits_after, place);
    }
}

/// Numbers of entries that each head holds, `[layer][kv_head]`.
fn counts(cache: &KvCache) -> Vec<Vec<usize>> {
    (0..cache.shape().layers).map(|layer| cache.kept_by_head(layer).unwrap().remove(0)).collect()
}

/// How many entries each head keeps of a prompt in which all tokens are alike, `[layer][kv_head]`:
/// for what depends on nothing but its length.
fn counts_of_length(policy: Policy, shape: CacheShape, tokens: usize) -> Vec<Vec<usize>> {
    let CacheShape { layers, query_heads, kv_heads, head_dim } = shape;
    let device = host();
    let mut cache = KvCache::new(shape, policy, &device).unwrap();
    let same = |heads| Tensor::<4>::ones([1, heads, tokens, head_dim], &device);
    for layer in 0..layers {
        let (q, kv) = (same(query_heads), same(kv_heads));
        cache.attend(layer, q, kv.clone(), kv, &NoPositionEncoding).unwrap();
    }
    counts(&cache)
}
