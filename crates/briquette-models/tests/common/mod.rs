//! What tests of several files need.

#![allow(dead_code)] // each test file uses its part

use std::path::PathBuf;

use briquette::{KvCache, Policy};
use briquette_models::{Error, GenerateOptions, Model, ModelConfig, Tokenizer};
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde_json::Value;

pub(crate) fn device() -> Device {
    briquette::device::open("flex").unwrap()
}

pub(crate) fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"))
}

/// The embedded model.
pub(crate) fn ember() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/ember-7m"))
}

/// A full cache.
pub(crate) fn cache(model: &Model) -> KvCache {
    model.cache(Policy::full()).unwrap()
}

pub(crate) fn row(ids: &[u32]) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(ids.to_vec(), [1, ids.len()]), &device())
}

pub(crate) fn host<const D: usize>(logits: Tensor<D>) -> Vec<f32> {
    logits.try_into_vec_as().unwrap()
}

/// Logits after each token.
pub(crate) fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    host(model.forward(row(tokens), &mut cache(model)).unwrap())
}

pub(crate) fn assert_close(name: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let worst = off.fold(0.0, |a: f32, b| if b.is_nan() { b } else { a.max(b) });
    assert!(worst <= tolerance, "{name}: differs by {worst}");
}

pub(crate) fn options(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens, ..Default::default() }
}

/// The object with other keys.
pub(crate) fn with_keys(mut object: Value, keys: &Value) -> Value {
    for (key, value) in keys.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

/// The configuration of a checkpoint of the fixtures, with other keys.
pub(crate) fn config_with(name: &str, keys: &Value) -> Result<ModelConfig, Error> {
    let text = std::fs::read_to_string(fixtures().join(name).join("config.json")).unwrap();
    let config = with_keys(serde_json::from_str(&text).unwrap(), keys);
    ModelConfig::from_json(&config.to_string())
}

/// Checks that a setting is refused which is known and not supported.
pub(crate) fn assert_unsupported(found: Result<ModelConfig, Error>, named: &str) {
    match found {
        Err(Error::UnsupportedSetting { key, .. }) => assert_eq!(key, named),
        other => panic!("{named}: {other:?}"),
    }
}

/// Checks that a setting is refused which makes no sense.
pub(crate) fn assert_invalid(found: Result<ModelConfig, Error>, named: &str) {
    match found {
        Err(Error::InvalidSetting { key, .. }) => assert_eq!(key, named),
        other => panic!("{named}: {other:?}"),
    }
}

/// Checks that a tokenizer is refused with a message that has these parts.
pub(crate) fn assert_refused(found: Result<Tokenizer, Error>, parts: &[&str]) {
    match found {
        Err(Error::Tokenizer(message)) => {
            assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
        }
        other => panic!("{parts:?}: {other:?}"),
    }
}
