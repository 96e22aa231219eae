//! kvpress's presses that run the model again, or decide by layers.

use briquette::{
    Budget, Policy,
    allocate::{HeadAdaptive, LazyLayers},
    score::ReconstructionAttention,
};
use briquette_models::{Instruction, Tokenizer, prefill, reconstruct};
use serde::Deserialize;

use super::{Prompt, fixture, model, repository};

#[derive(Deserialize)]
struct Passes {
    instruction: Words,
    cases: Vec<Case>,
}

/// What the model is told, as tokens.
#[derive(Deserialize)]
struct Words {
    first: Vec<u32>,
    next: Vec<u32>,
    answer: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    press: String,
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
}

/// By kvpress's names and with its defaults.
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
        }
    }
}

fn policy(case: &Case) -> Policy {
    let (params, budget) = (&case.params, Budget::Tokens(case.n_kept));
    match case.press.as_str() {
        "kvzip" => {
            let score = ReconstructionAttention {
                tokens: params.chunk_size,
                normalize: params.kvzip_plus_normalization,
            };
            let policy = Policy::kvzip(budget).with_sinks(params.n_sink).with_score(score);
            match params.layerwise {
                true => policy.with_allocate(HeadAdaptive { floor: 0.0, ..Default::default() }),
                false => policy,
            }
        }
        "simlayerkv" => Policy::simlayerkv(budget).with_sinks(params.n_initial).with_allocate(
            LazyLayers { threshold: params.lazy_threshold, window: params.n_last },
        ),
        press => panic!("no policy for the press {press}"),
    }
}

#[test]
fn passes_of_kvpress() {
    let passes: Passes = fixture("kvpress_passes.json");
    let tokenizer = Tokenizer::load(repository().join("models/ember-7m")).unwrap();
    let instruction = Instruction::new(&tokenizer).unwrap();
    let Words { first, next, answer } = passes.instruction;
    assert_eq!(instruction, Instruction { first, next, answer });
    let mut kinds = [0; 2];
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
    }
    assert!(kinds.into_iter().all(|count| count >= 2), "{kinds:?}");
}
