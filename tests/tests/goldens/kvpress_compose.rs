//! The tokens that kvpress's KVComposePress keeps.

use briquette::{Budget, Policy, score::KvCompose};
use briquette_models::{Instruction, Tokenizer, prefill, reconstruct};
use serde::Deserialize;

use super::{Prompt, cases, model, repository};

#[derive(Deserialize)]
struct Case {
    params: Params,
    n_kept: usize,
    #[serde(flatten)]
    prompt: Prompt,
}

/// Parameters by kvpress's names and with its defaults.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Params {
    add_mean_across_heads: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { add_mean_across_heads: true }
    }
}

#[test]
fn composites_of_kvpress() {
    let tokenizer = Tokenizer::load(repository().join("models/ember-7m")).unwrap();
    let instruction = Instruction::new(&tokenizer).unwrap();
    for case in cases::<Case>("kvpress_compose.json", 3) {
        let tokens = &case.prompt.tokens;
        let score =
            KvCompose { layer_mean: case.params.add_mean_across_heads, ..KvCompose::default() };
        let policy = Policy::kvcompose(Budget::Tokens(case.n_kept)).with_scorer(score);
        let mut cache = model().cache(policy).unwrap();
        prefill(model(), &[tokens], &mut cache, None).unwrap();
        assert!(reconstruct(model(), &[tokens], &mut cache, &instruction).unwrap());
        for (layer, expected) in case.prompt.kept.iter().enumerate() {
            let found = cache.kept_positions(layer).unwrap().remove(0);
            let margin = case.prompt.margin;
            assert_eq!(found, *expected, "layer {layer}, {:?}, margin {margin}", case.params);
        }
    }
}
