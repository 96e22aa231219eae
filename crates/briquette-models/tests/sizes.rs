//! Sizes that a `config.json` claims are held to what the folder holds before memory is sized by
//! them.

mod common;
mod tiny;

use std::{
    fs,
    time::{Duration, Instant},
};

use briquette_models::{Error, Model, ModelConfig};
use burn::tensor::DType;
use common::{cache, host};
use serde_json::{Value, json};
use tiny::{Tiny, device, prompt};

/// The result of loading a whole checkpoint whose `config.json` has one key changed.
fn load_with(tiny: &Tiny, key: &str, value: Value) -> Result<Model, Error> {
    let mut config = tiny.config.clone();
    config[key] = value;
    let dir = tiny.folder();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    Model::load(dir.path(), &device(), DType::F32)
}

#[test]
fn a_size_beyond_the_checkpoint_is_refused_at_once() {
    let tiny = Tiny::new();
    let start = Instant::now();
    let sizes = [
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
    ];
    for key in sizes {
        for value in [60_000_u64, 1 << 20, 10_000_000, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX]
        {
            let error = load_with(&tiny, key, json!(value)).unwrap_err();
            let refused = matches!(
                error,
                Error::InvalidSetting { .. }
                    | Error::MissingTensor { .. }
                    | Error::TensorShape { .. }
            );
            assert!(refused, "{key} = {value}: {error}");
        }
        for value in [json!(-1), json!(1.5), json!("x"), json!([])] {
            let error = load_with(&tiny, key, value.clone()).unwrap_err();
            assert!(matches!(error, Error::Json { .. }), "{key} = {value}: {error}");
        }
    }
    let error = load_with(&tiny, "num_hidden_layers", json!(60_000)).unwrap_err().to_string();
    assert!(error.contains("60000") && error.contains("at most 20"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn every_architecture_refuses_sizes_beyond_all_models() {
    let start = Instant::now();
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let mut read = 0;
    for entry in fs::read_dir(fixtures).unwrap() {
        let path = entry.unwrap().path().join("config.json");
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let config: Value = serde_json::from_str(&text).unwrap();
        read += 1;
        // The sizes of a model with other parts are those of its text part.
        let part = if config.get("text_config").is_some() { "/text_config" } else { "" };
        let with = |key: &str, number: Value| {
            let mut changed = config.clone();
            changed.pointer_mut(part).unwrap()[key] = number;
            ModelConfig::from_json(&changed.to_string())
        };
        for (key, value) in config.pointer(part).unwrap().as_object().unwrap() {
            if !value.is_number() {
                continue;
            }
            for number in [json!(0), json!(u64::MAX), json!(i64::MAX), json!(1e300), json!(-1)] {
                // Refused, or a key that sizes nothing: it must come back, and soon.
                let _ = with(key, number);
            }
        }
        for key in ["num_hidden_layers", "num_attention_heads", "vocab_size"] {
            assert!(with(key, json!(u64::MAX / 2)).is_err(), "{path:?} {key}");
        }
    }
    assert!(read > 10, "{read} configurations");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_long_context_takes_memory_when_it_is_used() {
    // A table of all positions would be 32 TB.
    let long = load_with(&Tiny::new(), "max_position_embeddings", json!(1_u64 << 40)).unwrap();
    assert_eq!(long.config().max_position_embeddings, 1 << 40);
    let logits = |model: &Model| {
        let prompts = [prompt(3, 100)];
        host(briquette_models::prefill(model, &prompts, &mut cache(model), None).unwrap())
    };
    assert_eq!(logits(&long), logits(&Tiny::new().load()));
}
