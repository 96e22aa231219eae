//! The embedded model gives the same tokens on every backend.

use std::fs::read_to_string;

use briquette::{Budget, Policy};
use briquette_models::{GenerateOptions, Model, generate};
use briquette_tests::backends::{backends, host};
use burn::tensor::{DType, Device};
use serde::Deserialize;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// What `transformers` answers to, as `goldens` has it on the host.
#[derive(Deserialize)]
struct Answers {
    prompts: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    tokens: Vec<u32>,
    argmax_next: Vec<u32>,
}

fn answer(model: &Model, policy: &Policy, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let mut cache = model.cache(policy.clone()).unwrap();
    let options = GenerateOptions { max_new_tokens: tokens, ..GenerateOptions::default() };
    generate(model, prompt, &mut cache, &options, |_| {}).unwrap().0.tokens
}

#[test]
fn answers_are_those_of_transformers_and_of_the_host() {
    let answers = read_to_string(format!("{HERE}/fixtures/ember_logits.json")).unwrap();
    let Answers { prompts } = serde_json::from_str(&answers).unwrap();
    let load =
        |device: &Device| Model::load(format!("{HERE}/../models/ember-7m"), device, DType::F32);
    let on_host = load(&host()).unwrap();
    let longest = prompts.iter().max_by_key(|prompt| prompt.tokens.len()).unwrap();
    let budget = Budget::Tokens(longest.tokens.len() / 2);
    for backend in backends() {
        let model = load(&backend.device).unwrap();
        for Answer { tokens, argmax_next } in &prompts {
            let found = answer(&model, &Policy::full(), tokens, argmax_next.len());
            assert_eq!(found, *argmax_next, "{}", backend.name);
        }
        for policy in [Policy::snapkv(budget), Policy::ems(budget), Policy::fp8()] {
            let [found, expected] =
                [&model, &on_host].map(|model| answer(model, &policy, &longest.tokens, 40));
            assert_eq!(found, expected, "{}, {}", policy.name(), backend.name);
        }
    }
}
