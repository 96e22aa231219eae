//! Models of latent attention, whose caches hold values in keys (DeepSeek).

mod common;

use std::{collections::HashMap, fs, path::PathBuf};

use briquette::{CacheConfig, KvCache, Policy, position::PositionEncoding};
use briquette_models::{Attend, Error, Model, ModelConfig};
use burn::tensor::{DType, Tensor};
use common::{assert_invalid, assert_unsupported, config_with, device, fixtures, logits, row};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const TOKENS: [u32; 5] = [3, 14, 15, 92, 65];

fn folder() -> PathBuf {
    fixtures().join("deepseek-v3")
}

fn load() -> Model {
    Model::load(folder(), &device(), DType::F32).unwrap()
}

fn with(keys: Value) -> Result<ModelConfig, Error> {
    config_with("deepseek-v3", &keys)
}

#[test]
fn an_entry_is_the_latent_and_the_rotated_channels() {
    let model = load();
    let shape = model.cache_shape();
    assert_eq!((shape.query_heads, shape.kv_heads, shape.head_dim), (4, 1, 28));
    let mut cache = model.cache(Policy::full()).unwrap();
    model.forward(row(&TOKENS), &mut cache).unwrap();
    let of_token = model.config().token_bytes(DType::F32);
    assert_eq!(of_token, 2 * 28 * 4);
    assert_eq!(cache.bytes_full(), TOKENS.len() * of_token);
}

#[test]
fn a_cache_without_values_in_keys_is_refused() {
    let model = load();
    let scale = model.config().softmax_scale.unwrap();
    let config = CacheConfig::default().with_softmax_scale(scale).with_value_dim(20);
    let shape = model.cache_shape();
    let mut cache = KvCache::with_config(shape, Policy::full(), config, &device()).unwrap();
    let error = model.forward(row(&TOKENS), &mut cache).unwrap_err();
    assert!(matches!(error, Error::CacheAttention { setting: "values_in_keys", .. }), "{error}");
    assert!(error.to_string().contains("the model needs 20"), "{error}");
}

#[test]
fn a_pass_that_takes_values_beside_keys_is_refused() {
    struct Beside;

    impl Attend for Beside {
        fn attend(
            &mut self,
            _layer: usize,
            queries: Tensor<4>,
            _keys: Tensor<4>,
            _values: Tensor<4>,
            _encoding: &dyn PositionEncoding,
        ) -> briquette::Result<Tensor<4>> {
            Ok(queries)
        }
    }

    let error = load().forward_last_through(row(&TOKENS), &mut Beside).unwrap_err();
    assert!(matches!(error, Error::Cache(briquette::Error::Stage { .. })), "{error}");
    assert!(error.to_string().contains("run the model on a `KvCache`"), "{error}");
}

#[test]
fn the_layer_that_drafts_tokens_is_left_out() {
    let bytes = fs::read(folder().join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let expected = logits(&load(), &TOKENS);
    let load_with = |name: &str| {
        let mut tensors: HashMap<_, _> =
            stored.iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        tensors.insert(name.to_owned(), stored.tensor("model.norm.weight").unwrap());
        let bytes = safetensors::serialize(tensors, None).unwrap();
        let config = ModelConfig::from_folder(folder()).unwrap();
        Model::from_safetensors(config, bytes, &device(), DType::F32)
    };
    let model = load_with("model.layers.2.enorm.weight").unwrap();
    assert_eq!(logits(&model, &TOKENS), expected);
    for name in ["model.layers.3.enorm.weight", "model.layers.1.enorm.weight"] {
        let error = load_with(name).unwrap_err();
        assert!(matches!(&error, Error::ExtraTensor { tensor, .. } if tensor == name), "{error}");
    }
}

#[test]
fn the_correction_of_the_choice_of_experts_stays_in_f32() {
    let bytes = |dtype| Model::load(folder(), &device(), dtype).unwrap().weight_bytes();
    // Eight experts in one layer.
    assert_eq!(2 * bytes(DType::BF16), bytes(DType::F32) + 8 * 4);
}

#[test]
fn absent_keys_take_the_defaults_of_transformers() {
    let config = ModelConfig::from_json(r#"{ "model_type": "deepseek_v3" }"#).unwrap();
    let latent = config.latent.unwrap();
    assert_eq!(latent.q_lora_rank, Some(1536));
    assert_eq!((latent.kv_lora_rank, latent.key_dim(), latent.v_head_dim), (512, 576, 128));
    let experts = config.experts.unwrap();
    assert_eq!((experts.experts, experts.dense_layers.len()), (256, 3));
    assert_eq!(experts.shared_intermediate_size, Some(2048));
    assert_eq!(config.softmax_scale, Some(192_f64.powf(-0.5)));

    let none = json!({ "q_lora_rank": null, "n_shared_experts": null, "n_group": 1 });
    let config = with(none).unwrap();
    assert_eq!(config.latent.unwrap().q_lora_rank, None);
}

#[test]
fn settings_that_would_be_computed_wrongly_are_refused() {
    for (keys, named) in [
        (json!({ "scoring_func": "softmax" }), "scoring_func"),
        (json!({ "topk_method": "greedy" }), "topk_method"),
        (
            json!({ "rope_parameters": {
                "rope_type": "linear", "factor": 2.0, "mscale_all_dim": 1.0,
            } }),
            "mscale_all_dim",
        ),
    ] {
        assert_unsupported(with(keys), named);
    }
    for (key, value) in [
        ("kv_lora_rank", 0),
        ("q_lora_rank", 0),
        ("qk_rope_head_dim", 0),
        ("v_head_dim", 1 << 21),
        ("n_group", 3),
        ("n_group", 8),
        ("topk_group", 3),
        ("num_experts_per_tok", 9),
        ("routed_scaling_factor", 0),
    ] {
        assert_invalid(with(json!({ key: value })), key);
    }
    for (key, value) in [("num_key_value_heads", 2), ("head_dim", 16)] {
        let error = with(json!({ key: value })).unwrap_err();
        assert!(matches!(error, Error::Contradiction { .. }), "{key}: {error}");
    }
}
