//! The memory that loading takes beside the model: at most 1.2 times the largest shard.

mod memory;
mod tiny;

use std::{env, fs, path::Path};

use briquette_models::Model;
use burn::tensor::DType;
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
