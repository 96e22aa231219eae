//! The memory that loading takes: beside the model at most 1.2 times the largest shard, and of a
//! quantized GGUF file at most 1.1 times the file in all.

mod memory;
mod raw_gguf;
mod tiny;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use briquette_models::Model;
use burn::tensor::DType;
use raw_gguf::{RawGguf, RawTensor};
use safetensors::Dtype;
use serde_json::json;
use tiny::{Tiny, device};

/// The folder that the process of its own reads.
const FOLDER: &str = "BRIQUETTE_TEST_FOLDER";

/// 33 million weights in layers of 13 MiB and an embedding of 16 MiB, as f32.
fn model() -> Tiny {
    Tiny::with(json!({
        "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64,
    }))
}

fn as_bf16(mut tiny: Tiny) -> Tiny {
    for stored in tiny.tensors.values_mut() {
        stored.bytes = stored.bytes.chunks_exact(4).flat_map(|b| [b[2], b[3]]).collect();
        stored.dtype = Dtype::BF16;
    }
    tiny
}

/// Loads a folder, and compares what that took with the model and the largest shard.
fn measure(dir: &Path) {
    let Some(before) = memory::most_held() else { return };
    let model = Model::load(dir, &device(), DType::F32).unwrap();
    let peak = memory::most_held().unwrap() - before;
    let sizes = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
    let shard = sizes.max().unwrap() as usize >> 10;
    let held = model.weight_bytes() >> 10;
    let beside = peak.saturating_sub(held);
    println!(
        "peak {} MiB, model {} MiB, largest shard {} MiB: {:.2} of a shard beside the model",
        peak >> 10,
        held >> 10,
        shard >> 10,
        beside as f64 / shard as f64
    );
    assert!(10 * beside <= 12 * shard, "{peak} KiB, {held} of the model, {shard} of a shard");
}

#[test]
fn shards_are_read_one_by_one() {
    if let Some(dir) = env::var_os(FOLDER) {
        return measure(dir.as_ref());
    }
    let model = model();
    for (tiny, dtype) in [(model.clone(), "f32"), (as_bf16(model), "bf16")] {
        for (stem, ending) in [("model", "safetensors"), ("pytorch_model", "bin")] {
            let dir = tiny.shards(3, stem, ending);
            let said =
                memory::run_alone("shards_are_read_one_by_one", FOLDER, dir.path().as_os_str());
            let line = said.lines().find(|line| line.contains("peak ")).unwrap_or_default();
            println!("{dtype} {ending}: {line}");
        }
    }
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gguf/llama.gguf")
}

/// 32 layers of 4 million weights in blocks of a type, each `bytes` long behind a scale of 1.
fn quantized(kind: u32, bytes: usize) -> RawGguf {
    const HIDDEN: usize = 512;
    const INNER: usize = 2048;
    const LAYERS: u16 = 32;
    let mut file = RawGguf::read(fixture())
        .number("llama.block_count", LAYERS)
        .number("llama.embedding_length", HIDDEN as u16)
        .number("llama.feed_forward_length", INNER as u16)
        .number("llama.attention.head_count", 8)
        .number("llama.attention.head_count_kv", 8)
        .number("llama.rope.dimension_count", 64)
        .number("llama.attention.key_length", 64)
        .number("llama.attention.value_length", 64);
    let vocabulary = file.tensors.iter().find(|tensor| tensor.name() == "token_embd.weight");
    let vocabulary = vocabulary.unwrap().rows();
    let matrix = |name: &str, outputs: usize, inputs: usize| {
        let block = [&[0, 0x3c][..], &vec![1; bytes]].concat();
        RawTensor::new(name, &[outputs, inputs], kind, block.repeat(outputs * inputs / 32))
    };
    let norm = |name: &str| {
        let ones = 1.0_f32.to_le_bytes().repeat(HIDDEN);
        RawTensor::new(name, &[HIDDEN], 0, ones)
    };
    file.tensors =
        vec![matrix("token_embd.weight", vocabulary, HIDDEN), norm("output_norm.weight")];
    for layer in 0..LAYERS {
        let named = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            file.tensors.push(matrix(&named(part), HIDDEN, HIDDEN));
        }
        for (part, outputs, inputs) in
            [("ffn_gate", INNER, HIDDEN), ("ffn_up", INNER, HIDDEN), ("ffn_down", HIDDEN, INNER)]
        {
            file.tensors.push(matrix(&named(part), outputs, inputs));
        }
        file.tensors.extend(["attn_norm", "ffn_norm"].map(|part| norm(&named(part))));
    }
    file
}

/// Loads a file, and compares what that took with it.
fn measure_file(path: &Path) {
    // The program's own code and threads are there before.
    Model::load(fixture(), &device(), DType::F32).unwrap();
    let Some(before) = memory::most_held() else { return };
    let model = Model::load(path, &device(), DType::F32).unwrap();
    let peak = memory::most_held().unwrap() - before;
    let (file, held) = (path.metadata().unwrap().len() as usize >> 10, model.weight_bytes() >> 10);
    println!("peak {} MiB, model {} MiB, file {} MiB", peak >> 10, held >> 10, file >> 10);
    assert!(10 * peak <= 11 * file, "{peak} KiB of a file of {file} KiB");
}

#[test]
fn a_quantized_file_takes_little_more_than_itself() {
    if let Some(path) = env::var_os(FOLDER) {
        return measure_file(path.as_ref());
    }
    for (name, kind, bytes) in [("Q8_0", 8, 32), ("Q4_0", 2, 16)] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        quantized(kind, bytes).write(&path);
        let test = "a_quantized_file_takes_little_more_than_itself";
        let said = memory::run_alone(test, FOLDER, path.as_os_str());
        let line = said.lines().find(|line| line.contains("peak ")).unwrap_or_default();
        println!("{name}: {line}");
    }
}
