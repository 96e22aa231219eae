//! Safetensors beside the configuration of a tiny model.
#![no_main]

use std::{fs, sync::LazyLock};

use briquette_models::Model;
use burn::tensor::DType;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), include_str!("../seeds/tiny.json")).unwrap();
    folder
});

fuzz_target!(|bytes: &[u8]| {
    let device = briquette::device::open("flex").unwrap();
    fs::write(FOLDER.path().join("model.safetensors"), bytes).unwrap();
    let _ = Model::load(FOLDER.path(), &device, DType::F32);
});
