//! The embedded model.

use briquette::Policy;
use briquette_models::{GenerateOptions, Tokenizer, generate, prefill};
use serde::Deserialize;

use super::{assert_logits, fixture, model, repository};

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

#[test]
fn logits_of_transformers() {
    let logits: Logits = fixture("ember_logits.json");
    assert_eq!((&*logits.model, logits.prompts.len()), ("ember-7m", 4));
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
