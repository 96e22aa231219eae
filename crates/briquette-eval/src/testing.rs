//! The embedded model, for tests.

use std::path::PathBuf;

use briquette_models::{Model, Tokenizer};
use burn::tensor::DType;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/ember-7m")
}

pub(crate) fn tokenizer() -> Tokenizer {
    Tokenizer::load(folder()).unwrap()
}

pub(crate) fn model() -> (Model, Tokenizer) {
    let device = briquette::device::open("flex").unwrap();
    (Model::load(folder(), &device, DType::F32).unwrap(), tokenizer())
}
