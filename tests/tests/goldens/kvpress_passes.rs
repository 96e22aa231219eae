//! kvpress's presses that run the model again, or decide by layers.

use briquette::{
    Budget, Policy, Schedule,
    allocate::{AboveThreshold, HeadAdaptive, LayerRatios, LazyLayers},
    policy::{PositionMode, Recent},
    score::{BlockWise, KeyDiff, Knorm, KvZip},
};
use briquette_models::{Instruction, Tokenizer, prefill, reconstruct};
use serde::Deserialize;

use super::{Next, Prompt, assert_logits, feed, fixture, model, repository};

#[derive(Deserialize)]
struct Passes {
    instruction: Words,
    cases: Vec<Case>,
}

/// Tokens that ask the model to repeat.
#[derive(Deserialize)]
struct Words {
    first: Vec<u32>,
    next: Vec<u32>,
    answer: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    press: String,
    /// The press inside, of a wrapper.
    of: Option<String>,
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
    /// One more token, where keys are rotated anew.
    #[serde(flatten)]
    next: Option<Next>,
}

/// Parameters by kvpress's names and with its defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Params {
    chunk_size: usize,
    n_sink: usize,
    kvzip_plus_normalization: bool,
    layerwise: bool,
    lazy_threshold: f64,
    n_last: usize,
    n_initial: usize,
    n_recent: usize,
    block_size: usize,
    threshold: f64,
    sliding_window_size: usize,
    compression_ratios: Vec<f64>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            chunk_size: 2048,
            n_sink: 4,
            kvzip_plus_normalization: false,
            layerwise: false,
            lazy_threshold: 1.0,
            n_last: 1,
            n_initial: 4,
            n_recent: 1024,
            block_size: 128,
            threshold: 0.0,
            sliding_window_size: 128,
            compression_ratios: Vec::new(),
        }
    }
}

fn policy(case: &Case) -> Policy {
    let (params, budget) = (&case.params, Budget::Tokens(case.n_kept));
    match case.press.as_str() {
        "kvzip" => {
            let score =
                KvZip { tokens: params.chunk_size, normalize: params.kvzip_plus_normalization };
            let policy = Policy::kvzip(budget).with_sinks(params.n_sink).with_scorer(score);
            match params.layerwise {
                true => policy.with_allocator(HeadAdaptive { floor: 0.0, ..Default::default() }),
                false => policy,
            }
        }
        "simlayerkv" => Policy::simlayerkv(budget)
            .with_sinks(params.n_initial)
            .with_allocator(LazyLayers { threshold: params.lazy_threshold, window: params.n_last }),
        wrapper => {
            let of = case.of.as_deref();
            let inside = match of {
                Some("keydiff") => Policy::keydiff(budget),
                Some("knorm") => Policy::knorm(budget),
                of => panic!("no policy for the press {of:?}"),
            };
            let inside = inside.with_schedule(Schedule::prefill_only());
            match (wrapper, of) {
                ("block", Some("keydiff")) => {
                    inside.with_scorer(BlockWise::of(params.block_size, KeyDiff {}))
                }
                ("block", _) => inside.with_scorer(BlockWise::of(params.block_size, Knorm {})),
                ("dms", _) => inside
                    .with_budget(Budget::Ratio(1.0))
                    .with_recent(Recent::Tokens(params.sliding_window_size))
                    .with_allocator(AboveThreshold { threshold: params.threshold }),
                ("per_layer", _) => {
                    let ratios = params.compression_ratios.iter().map(|gone| 1.0 - gone).collect();
                    inside.with_allocator(LayerRatios { ratios })
                }
                ("rerotation", _) => inside.with_positions(PositionMode::InCache),
                (press, _) => panic!("no policy for the press {press}"),
            }
        }
    }
}

#[test]
fn passes_of_kvpress() {
    let passes: Passes = fixture("kvpress_passes.json");
    let tokenizer = Tokenizer::load(repository().join("models/ember-7m")).unwrap();
    let instruction = Instruction::new(&tokenizer).unwrap();
    let Words { first, next, answer } = passes.instruction;
    assert_eq!(instruction, Instruction { first, next, answer });
    let (mut kinds, mut turned) = ([0; 2], 0);
    for case in passes.cases {
        let tokens = &case.prompt.tokens;
        let place = format!(
            "{} {:?}, {} tokens, margin {}",
            case.press,
            case.params,
            tokens.len(),
            case.prompt.margin
        );
        let mut cache = model().cache(policy(&case)).unwrap();
        prefill(model(), &[tokens], &mut cache, None).unwrap();
        let repeats = reconstruct(model(), &[tokens], &mut cache, &instruction).unwrap();
        assert_eq!(repeats, case.press == "kvzip", "{place}");
        kinds[usize::from(repeats)] += 1;
        for (layer, expected) in case.prompt.kept.iter().enumerate() {
            let found = cache.kept_positions(layer).unwrap().remove(0);
            assert_eq!(found, *expected, "layer {layer}, {place}");
        }
        if let Some(next) = case.next {
            turned += 1;
            let logits = feed(next.next_token, &mut cache);
            assert_logits(logits, &next.last_logits_after, &place);
        }
    }
    assert!(kinds == [6, 4] && turned == 1, "{kinds:?}, {turned}");
}
