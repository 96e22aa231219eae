//! kvpress's presses that run the model again, or decide by layers.

use briquette::{
    Budget, Policy, Schedule,
    allocate::{AboveThreshold, HeadAdaptive, LayerRatios, LazyLayers},
    policy::{PositionMode, Recent},
    score::{BlockWise, KeyDiff, Knorm, KvCompose, KvZip},
};
use briquette_models::{Instruction, Tokenizer, prefill, reconstruct};
use serde::Deserialize;

use super::{Case, assert_logits, cases, feed, fixture, model, repository};

#[derive(Deserialize)]
struct Passes {
    instruction: Words,
    cases: Vec<Case<Params>>,
}

/// Tokens that ask the model to repeat.
#[derive(Deserialize)]
struct Words {
    first: Vec<u32>,
    next: Vec<u32>,
    answer: Vec<u32>,
}

/// Parameters by kvpress's names.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Params {
    chunk_size: usize,
    n_sink: Option<usize>,
    kvzip_plus_normalization: bool,
    layerwise: bool,
    lazy_threshold: f64,
    n_last: usize,
    n_initial: usize,
    block_size: usize,
    threshold: f64,
    sliding_window_size: usize,
    compression_ratios: Vec<f64>,
    add_mean_across_heads: Option<bool>,
}

fn policy(case: &Case<Params>) -> Policy {
    let (params, budget) = (&case.params, Budget::Tokens(case.n_kept));
    match case.press.as_str() {
        "kvzip" => {
            let score =
                KvZip { tokens: params.chunk_size, normalize: params.kvzip_plus_normalization };
            let policy =
                Policy::kvzip(budget).with_sinks(params.n_sink.unwrap_or(4)).with_scorer(score);
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

fn instruction() -> Instruction {
    Instruction::new(&Tokenizer::load(repository().join("models/ember-7m")).unwrap()).unwrap()
}

/// Holds a case to what is kept there. Returns whether there was a second pass.
fn compare(case: &Case<Params>, policy: Policy, instruction: &Instruction) -> bool {
    let (tokens, place) = (&case.prompt.tokens, case.place());
    let mut cache = model().cache(policy).unwrap();
    prefill(model(), &[tokens], &mut cache, None).unwrap();
    let repeats = reconstruct(model(), &[tokens], &mut cache, instruction).unwrap();
    for (layer, expected) in case.prompt.kept.iter().enumerate() {
        let found = cache.kept_positions(layer).unwrap().remove(0);
        assert_eq!(found, *expected, "layer {layer}, {place}");
    }
    if let Some(next) = &case.next {
        let logits = feed(next.next_token, &mut cache);
        assert_logits(logits, &next.last_logits_after, &place);
    }
    repeats
}

#[test]
fn passes_of_kvpress() {
    let passes: Passes = fixture("kvpress_passes.json");
    let instruction = instruction();
    let Words { first, next, answer } = passes.instruction;
    assert_eq!(instruction, Instruction { first, next, answer });
    let mut kinds = [0; 2];
    for case in &passes.cases {
        let repeats = compare(case, policy(case), &instruction);
        assert_eq!(repeats, case.press == "kvzip", "{}", case.place());
        kinds[usize::from(repeats)] += 1;
    }
    let turned = passes.cases.iter().filter(|case| case.next.is_some()).count();
    assert!(kinds == [6, 4] && turned == 1, "{kinds:?}, {turned}");
}

#[test]
fn composites_of_kvpress() {
    let instruction = instruction();
    for case in cases::<Case<Params>>("kvpress_compose.json", 3) {
        let layer_mean = case.params.add_mean_across_heads.unwrap_or(true);
        let score = KvCompose { layer_mean, ..KvCompose::default() };
        let policy = Policy::kvcompose(Budget::Tokens(case.n_kept)).with_scorer(score);
        assert!(compare(&case, policy, &instruction));
    }
}
