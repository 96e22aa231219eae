//! The embedded model against `transformers`, and the methods against kvpress on that model.
//!
//! `goldens/generate.py` writes the fixtures; `goldens/README.md` describes their fields.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
};

use briquette::{
    Budget, KvCache, Policy, Schedule, Scorer,
    policy::{PositionMode, Recent},
    score::{Normalize, Observes, Pool, ScoreInput},
};
use briquette_models::{GenerateOptions, Llama, Tokenizer, generate, prefill};
use briquette_tests::backends::host;
use burn::tensor::{DType, Int, Tensor, TensorData};
use serde::{Deserialize, de::DeserializeOwned};

#[derive(Deserialize)]
struct Logits {
    model: String,
    prompts: Vec<Continuation>,
}

#[derive(Deserialize)]
struct Continuation {
    text: String,
    tokens: Vec<u32>,
    last_logits: Vec<f64>,
    argmax_next: Vec<u32>,
}

#[derive(Deserialize)]
struct Presses {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    press: String,
    params: Params,
    tokens: Vec<u32>,
    n_kept: usize,
    margin: f64,
    /// `[layer][kv_head]`
    kept: Vec<Vec<Vec<usize>>>,
    next_token: u32,
    last_logits_after: Vec<f64>,
}

#[derive(Debug, Deserialize)]
struct Params {
    compression_ratio: f64,
    #[serde(default)]
    window_size: usize,
    #[serde(default)]
    kernel_size: usize,
    #[serde(default)]
    n_sink: usize,
    /// Whether keys are rotated to their rank in the cache.
    #[serde(default)]
    key_rotation: bool,
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

fn model() -> &'static Llama {
    static MODEL: OnceLock<Llama> = OnceLock::new();
    MODEL.get_or_init(|| {
        Llama::load(repository().join("models/ember-7m"), &host(), DType::F32).unwrap()
    })
}

fn assert_logits(found: Tensor<2>, expected: &[f64], place: &str) {
    let found: Vec<f32> = found.try_into_vec_as().unwrap();
    assert_eq!(found.len(), expected.len(), "{place}");
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (f64::from(*found) - expected).abs();
        assert!(off <= 1e-4, "logit {token} is {found}, expected {expected}, {place}");
    }
}

#[test]
fn logits_of_transformers() {
    let logits: Logits = fixture("ember_logits.json");
    assert_eq!(logits.model, "ember-7m");
    let model = model();
    let tokenizer = Tokenizer::load(repository().join("models/ember-7m")).unwrap();
    for prompt in &logits.prompts {
        assert_eq!(
            tokenizer.encode(&prompt.text, true).unwrap(),
            prompt.tokens,
            "{:?}",
            prompt.text
        );
        for chunk in [None, Some(100)] {
            let place = format!("{} tokens, chunks of {chunk:?}", prompt.tokens.len());
            let mut cache = model.cache(Policy::full()).unwrap();
            let found = prefill(model, &[&prompt.tokens], &mut cache, chunk).unwrap();
            assert_logits(found, &prompt.last_logits, &place);
        }
        let options = GenerateOptions {
            max_new_tokens: prompt.argmax_next.len(),
            ..GenerateOptions::default()
        };
        let mut cache = model.cache(Policy::full()).unwrap();
        let (generation, _) =
            generate(model, &prompt.tokens, &mut cache, &options, |_| {}).unwrap();
        assert_eq!(generation.tokens, prompt.argmax_next, "{:?}", prompt.text);
    }
}

/// The composition that does what a press does. A press works on the prompt only.
fn policy(case: &Case) -> Policy {
    let params = &case.params;
    let budget = Budget::Tokens(case.n_kept);
    let policy = match case.press.as_str() {
        "snapkv" => Policy::snapkv(budget)
            .with_window(params.window_size)
            .with_pool(Pool::avg(params.kernel_size)),
        "streaming_llm" => {
            let positions =
                if params.key_rotation { PositionMode::InCache } else { PositionMode::Written };
            Policy::streaming_llm(budget).with_sinks(params.n_sink).with_positions(positions)
        }
        "tova" => Policy::tova(budget),
        "observed_attention" => {
            Policy::h2o(budget).with_normalize(Normalize::Mean).with_recent(Recent::Tokens(0))
        }
        press => panic!("no policy for the press {press}"),
    };
    policy.with_schedule(Schedule::prefill_only())
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

    fn observes(&self) -> Observes {
        self.policy.scorer().observes()
    }

    fn score(&self, input: &ScoreInput<'_>) -> briquette::Result<Tensor<3>> {
        let scores = self.policy.scorer().score(input)?;
        self.scores.lock().unwrap().push(scores.clone());
        Ok(scores)
    }
}

#[test]
fn presses_of_kvpress() {
    let presses: Presses = fixture("kvpress.json");
    let model = model();
    for case in &presses.cases {
        let place = format!("{} {:?}, {} tokens", case.press, case.params, case.tokens.len());
        let kept_share = case.tokens.len() as f64 * (1.0 - case.params.compression_ratio);
        assert_eq!(case.n_kept, kept_share as usize, "what kvpress keeps, {place}");

        let scores = Arc::default();
        let recording = Recording { policy: policy(case), scores: Arc::clone(&scores) };
        let mut cache = model.cache(policy(case).with_scorer(recording)).unwrap();
        prefill(model, &[&case.tokens], &mut cache, None).unwrap();
        assert_kept(case, &cache, &scores.lock().unwrap(), &place);

        let next = TensorData::new(vec![i64::from(case.next_token)], [1, 1]);
        let next = Tensor::<2, Int>::from_data(next, &model.device());
        let logits = model.forward_last(next, &mut cache).unwrap();
        assert_logits(logits, &case.last_logits_after, &place);
    }
}

fn assert_kept(case: &Case, cache: &KvCache, scores: &[Tensor<3>], place: &str) {
    for (layer, expected) in case.kept.iter().enumerate() {
        let found = cache.kept_positions(layer).unwrap().remove(0);
        for (head, (found, expected)) in found.iter().zip(expected).enumerate() {
            if found == expected {
                continue;
            }
            let scores: Vec<f32> = scores[layer].clone().try_into_vec_as().unwrap();
            let score = |position: &usize| (*position, scores[head * case.tokens.len() + position]);
            let only_in = |one: &[usize], other: &[usize]| -> Vec<(usize, f32)> {
                one.iter().filter(|position| !other.contains(position)).map(score).collect()
            };
            panic!(
                "layer {layer}, kv head {head}: only kept here {:?}, only kept by kvpress {:?} (position, \
                 score here); smallest margin of kvpress {:e}; {place}",
                only_in(found, expected),
                only_in(expected, found),
                case.margin,
            );
        }
    }
}
