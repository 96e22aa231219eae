//! A tiny random Llama, written as a Hugging Face folder.

#![allow(dead_code)] // each test file uses its part

pub(crate) mod torch;

use std::{collections::BTreeMap, fs, path::Path};

use briquette_models::Model;
use burn::tensor::{DType, Device};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Bytes of a tensor with their type and shape.
#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Tiny {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Stored>,
}

impl Tiny {
    /// 2 layers, 4 query heads on 2 kv heads of 8 channels, tied head, 64 tokens of vocabulary, 128
    /// of context.
    pub(crate) fn new() -> Self {
        Self::with(json!({}))
    }

    /// The same with other keys in `config.json`, and the tensors that they ask for.
    pub(crate) fn with(keys: Value) -> Self {
        let mut config = json!({
            "model_type": "llama", "vocab_size": 64, "hidden_size": 24, "intermediate_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
            "max_position_embeddings": 128, "tie_word_embeddings": true, "eos_token_id": 1,
        });
        for (key, value) in keys.as_object().unwrap() {
            config[key] = value.clone();
        }
        let mut tiny = Self { config, tensors: BTreeMap::new() };
        let size = |key: &str| tiny.config[key].as_u64().unwrap() as usize;
        let (hidden, inner, vocab) =
            (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
        let queries = size("num_attention_heads") * size("head_dim");
        let keys = size("num_key_value_heads") * size("head_dim");
        let layers = size("num_hidden_layers");
        let flag = |key: &str| tiny.config[key].as_bool().unwrap_or(false);
        let (attention_bias, mlp_bias) = (flag("attention_bias"), flag("mlp_bias"));
        let tied = flag("tie_word_embeddings");

        tiny.random("model.embed_tokens.weight", &[vocab, hidden]);
        tiny.random("model.norm.weight", &[hidden]);
        if !tied {
            tiny.random("lm_head.weight", &[vocab, hidden]);
        }
        for layer in 0..layers {
            let name = |rest: &str| format!("model.layers.{layer}.{rest}");
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                tiny.random(&name(&format!("{norm}.weight")), &[hidden]);
            }
            for (projection, output, input, bias) in [
                ("self_attn.q_proj", queries, hidden, attention_bias),
                ("self_attn.k_proj", keys, hidden, attention_bias),
                ("self_attn.v_proj", keys, hidden, attention_bias),
                ("self_attn.o_proj", hidden, queries, attention_bias),
                ("mlp.gate_proj", inner, hidden, mlp_bias),
                ("mlp.up_proj", inner, hidden, mlp_bias),
                ("mlp.down_proj", hidden, inner, mlp_bias),
            ] {
                tiny.random(&name(&format!("{projection}.weight")), &[output, input]);
                if bias {
                    tiny.random(&name(&format!("{projection}.bias")), &[output]);
                }
            }
        }
        tiny
    }

    /// Adds a tensor of random numbers that depend on its name only.
    pub(crate) fn random(&mut self, name: &str, shape: &[usize]) {
        let seed = name.bytes().fold(17, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let bytes = (0..shape.iter().product())
            .flat_map(|_| (rng.random::<f32>() - 0.5).to_le_bytes())
            .collect();
        self.tensors.insert(name.into(), Stored { dtype: Dtype::F32, shape: shape.into(), bytes });
    }

    /// Writes `config.json` and one file of weights.
    pub(crate) fn folder(&self) -> TempDir {
        let dir = self.configured();
        write(&dir.path().join("model.safetensors"), self.tensors.iter());
        dir
    }

    /// Writes `config.json` and two shards, tensors dealt out in turn, with their index.
    pub(crate) fn sharded_folder(&self) -> TempDir {
        self.shards(2, "model", "safetensors")
    }

    /// The same of so many shards, which are safetensors (`model`) or PyTorch files
    /// (`pytorch_model`, `bin`).
    pub(crate) fn shards(&self, count: usize, stem: &str, ending: &str) -> TempDir {
        let dir = self.configured();
        let mut weight_map = serde_json::Map::new();
        for part in 0..count {
            let shard = format!("{stem}-{:05}-of-{count:05}.{ending}", part + 1);
            let held = || self.tensors.iter().skip(part).step_by(count);
            let path = dir.path().join(&shard);
            match ending {
                "bin" => fs::write(path, torch::file(held())).unwrap(),
                _ => write(&path, held()),
            }
            weight_map.extend(held().map(|(name, _)| (name.clone(), json!(shard))));
        }
        let index = json!({ "metadata": {}, "weight_map": weight_map });
        let path = dir.path().join(format!("{stem}.{ending}.index.json"));
        fs::write(path, index.to_string()).unwrap();
        dir
    }

    /// The model, loaded in f32 through a folder.
    pub(crate) fn load(&self) -> Model {
        Model::load(self.folder().path(), &device(), DType::F32).unwrap()
    }

    /// Writes `config.json` alone.
    pub(crate) fn configured(&self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        dir
    }
}

pub(crate) fn device() -> Device {
    briquette::device::open("flex").unwrap()
}

/// `count` tokens that depend on `seed` only.
pub(crate) fn prompt(seed: u64, count: usize) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(2..64)).collect()
}

fn write<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Stored)>) {
    let views = tensors.map(|(name, stored)| {
        (name, TensorView::new(stored.dtype, stored.shape.clone(), &stored.bytes).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}
