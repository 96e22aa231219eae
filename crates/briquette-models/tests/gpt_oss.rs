//! What gpt-oss alone has: sinks, experts in one tensor, and weights in MXFP4. Its logits are among
//! those of all architectures.

mod common;

use std::{collections::BTreeMap, fs};

use briquette::{CacheConfig, KvCache, Policy, ops::Window};
use briquette_models::{Architecture, Error, Model, ModelConfig, RopeScaling};
use burn::tensor::DType;
use common::{
    assert_invalid, assert_unsupported, config_with, device, fixtures, logits, row, with_keys,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

const BF16: &str = "gpt-oss";
const MXFP4: &str = "gpt-oss-mxfp4";

fn load(name: &str) -> Model {
    Model::load(fixtures().join(name), &device(), DType::F32).unwrap()
}

fn config(keys: Value) -> Result<ModelConfig, Error> {
    config_with(BF16, &keys)
}

/// The configuration of a file with these keys alone.
fn alone(keys: Value) -> Result<ModelConfig, Error> {
    let keys = with_keys(json!({ "model_type": "gpt_oss" }), &keys);
    ModelConfig::from_json(&keys.to_string())
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(name: &str) -> Tensors {
    let bytes = fs::read(fixtures().join(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    file.tensors().into_iter().map(|(name, view)| (name, own(view))).collect()
}

/// A folder with the configuration of a checkpoint, and these tensors in two files in turn.
fn shards(name: &str, tensors: &Tensors) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(fixtures().join(name).join("config.json"), dir.path().join("config.json")).unwrap();
    let mut places = serde_json::Map::new();
    for part in 0..2 {
        let shard = format!("model-{part}.safetensors");
        let held = || tensors.iter().skip(part).step_by(2);
        let views = held().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        fs::write(dir.path().join(&shard), safetensors::serialize(views, None).unwrap()).unwrap();
        places.extend(held().map(|(name, _)| (name.clone(), json!(shard))));
    }
    let index = json!({ "weight_map": places }).to_string();
    fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    dir
}

#[test]
fn a_file_without_keys_is_the_larger_model() {
    let config = ModelConfig::from_json(r#"{ "model_type": "gpt_oss" }"#).unwrap();
    assert_eq!(config.architecture, Architecture::GptOss);
    let sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers);
    assert_eq!((sizes, config.vocab_size), ((2880, 2880, 36), 201_088));
    let experts = config.experts.unwrap();
    assert_eq!((experts.experts, experts.experts_per_token), (128, 4));
    assert_eq!(
        (config.sliding_window.map(Window::size), config.sliding_layers.len()),
        (Some(128), 18)
    );
    assert!(config.sliding_layers.contains(&0) && !config.sliding_layers.contains(&1));
    assert_eq!((config.attention_bias, config.swiglu_limit), (true, Some(7.0)));
    assert_eq!((config.rope.theta, config.max_position_embeddings), (150_000.0, 131_072));
    let scaling = RopeScaling::Yarn {
        factor: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: false,
        attention_factor: 0.1 * 32_f64.ln() + 1.0,
        original_max_position_embeddings: 4096,
    };
    assert_eq!(config.rope.scaling, scaling);
}

#[test]
fn the_published_form_of_the_keys_is_read() {
    let old = json!({
        "rope_parameters": null, "rope_theta": 150_000, "swiglu_limit": 7.0, "experts_per_token": 2,
        "initial_context_length": 64, "rope_scaling": {
            "beta_fast": 32.0, "beta_slow": 1.0, "factor": 4.0, "rope_type": "yarn", "truncate": false,
            "original_max_position_embeddings": 64,
        },
    });
    assert_eq!(config(old).unwrap(), config(json!({})).unwrap());
    assert_invalid(config(json!({ "num_experts_per_tok": 5 })), "num_experts_per_tok");
    let other = config(json!({ "quantization_config": { "quant_method": "awq" } }));
    assert!(matches!(other, Err(Error::QuantizedWeights { method }) if method == "AWQ"));
}

#[test]
fn a_limit_that_transformers_does_not_take_is_refused() {
    for limit in [3.5, 0.0] {
        assert_unsupported(config(json!({ "swiglu_limit": limit })), "swiglu_limit");
    }
    let published = config(json!({ "swiglu_limit": 7 })).unwrap();
    assert_eq!(published.swiglu_limit, Some(7.0));
}

#[test]
fn frequencies_are_scaled_where_a_file_does_not_say_and_not_for_null() {
    let scaling = |keys| alone(keys).unwrap().rope.scaling;
    assert_eq!(scaling(json!({ "rope_parameters": null })), RopeScaling::Default);
    let absent = scaling(json!({}));
    assert!(matches!(absent, RopeScaling::Yarn { factor: 32.0, .. }), "{absent:?}");
    assert_eq!(scaling(json!({ "rope_scaling": {} })), absent);
}

#[test]
fn a_cache_without_sinks_is_refused() {
    let model = load(BF16);
    let windows = CacheConfig::default().with_windows(vec![Some(16), None]);
    let shape = model.cache_shape();
    let mut plain = KvCache::with_config(shape, Policy::full(), windows, &device()).unwrap();
    let error = model.forward(row(&[5, 6]), &mut plain).unwrap_err();
    assert!(matches!(error, Error::CacheAttention { setting: "sinks", .. }), "{error}");
}

#[test]
fn blocks_stay_quantized_and_may_lie_beside_another_shard_than_their_scales() {
    let (whole, prompt) = (load(MXFP4), [5, 17, 90, 3, 41]);
    let mut changed = tensors(MXFP4);
    let dir = shards(MXFP4, &changed);
    let sharded = Model::load(dir.path(), &device(), DType::F32).unwrap();
    assert_eq!(logits(&sharded, &prompt), logits(&whole, &prompt));

    // A scale that is no f16 in one expert: the gate or the other side becomes f32, 4 in place of
    // 34 / 32 bytes a number.
    let (_, _, scales) = changed.get_mut("model.layers.0.mlp.experts.gate_up_proj_scales").unwrap();
    scales[0] = 90;
    let dir = shards(MXFP4, &changed);
    let expanded = Model::load(dir.path(), &device(), DType::F32).unwrap();
    let more = expanded.weight_bytes() - whole.weight_bytes();
    assert_eq!(more, 64 * 32 * 4 - 64 * 34);
}

#[test]
fn tensors_that_are_not_of_the_experts_are_named() {
    let scales = "model.layers.1.mlp.experts.down_proj_scales";
    let mut missing = tensors(MXFP4);
    missing.remove(scales);
    let load = |name, tensors: &Tensors| {
        Model::load(shards(name, tensors).path(), &device(), DType::F32).unwrap_err()
    };
    let error = load(MXFP4, &missing);
    assert!(
        matches!(&error, Error::MissingTensor { tensor, shape, .. }
            if tensor == scales && shape == &[4, 32, 2]),
        "{error}"
    );
    let misfit = |name, tensor: &str, change: &dyn Fn(&mut Vec<usize>, &mut Vec<u8>)| {
        let mut all = tensors(name);
        let (_, shape, bytes) = all.get_mut(tensor).unwrap();
        change(shape, bytes);
        let error = load(name, &all);
        let found = matches!(&error, Error::LoadTensor { tensor: found, .. } if found == tensor);
        assert!(found && error.to_string().contains("is not that of 4 experts"), "{error}");
    };
    let blocks = "model.layers.1.mlp.experts.down_proj_blocks";
    misfit(MXFP4, blocks, &|shape, _| *shape = vec![2, 64, 2, 16]);
    misfit(MXFP4, blocks, &|shape, _| *shape = vec![4, 32, 1, 32]);
    misfit(MXFP4, blocks, &|shape, bytes| {
        *shape = vec![4, 0, 2, 16];
        bytes.clear();
    });
    let matrices = "model.layers.0.mlp.experts.gate_up_proj";
    misfit(BF16, matrices, &|shape, _| *shape = vec![8, 16, 48]);
    misfit(BF16, "model.layers.0.mlp.experts.down_proj_bias", &|shape, bytes| {
        *shape = vec![4, 0];
        bytes.clear();
    });

    // Sizes of one expert are told of it.
    let mut narrow = tensors(BF16);
    narrow.get_mut(matrices).unwrap().1 = vec![4, 48, 32];
    let error = load(BF16, &narrow);
    assert!(matches!(error, Error::TensorShape { .. }), "{error}");
}
