//! Models with recurrent layers, whose states are with their caches (Qwen3-Next).

mod common;

use std::{collections::HashMap, fs, path::PathBuf};

use briquette::{
    Budget, CacheConfig, CacheShape, KvCache, Policy, Prompt, position::PositionEncoding,
};
use briquette_models::{
    Attend, Error, GenerateOptions, MemoryPlan, Model, ModelConfig, generate, prefill,
    prefill_shared,
};
use burn::tensor::{DType, Tensor};
use common::{
    assert_close, assert_invalid, assert_unsupported, cache, config_with, device, fixtures, host,
    logits, options, row,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const TOKENS: [u32; 12] = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26];
const NEAR: f32 = 1e-4;
/// Numbers of the states of both recurrent layers: 80 channels of three columns, and four matrices
/// of 8 by 12.
const STATES: usize = 2 * (80 * 3 + 4 * 8 * 12);

fn folder() -> PathBuf {
    fixtures().join("qwen3-next")
}

fn load() -> Model {
    Model::load(folder(), &device(), DType::F32).unwrap()
}

fn with(keys: Value) -> Result<ModelConfig, Error> {
    config_with("qwen3-next", &keys)
}

/// Logits after a token, of each row.
fn next(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<f32> {
    let tokens = Tensor::cat(tokens.iter().map(|token| row(&[*token])).collect(), 0);
    host(model.forward_last(tokens, cache).unwrap())
}

/// Logits after the last of these tokens.
fn after(model: &Model, tokens: &[u32]) -> Vec<f32> {
    host(model.forward_last(row(tokens), &mut cache(model)).unwrap())
}

#[test]
fn a_cache_counts_layers_of_attention_and_the_bytes_of_states() {
    let model = load();
    let shape = CacheShape { layers: 1, query_heads: 4, kv_heads: 2, head_dim: 16 };
    assert_eq!(model.cache_shape(), shape);
    let of_token = 2 * 2 * 16 * 4;
    assert_eq!(model.config().token_bytes(DType::F32), of_token);
    let prompts = [&TOKENS[..], &TOKENS[..7]];
    let mut full = cache(&model);
    assert_eq!((full.bytes_held(), full.bytes_full()), (0, 0));
    prefill(&model, &prompts, &mut full, None).unwrap();
    let states = 2 * STATES * 4;
    assert_eq!(full.bytes_full(), (12 + 7) * of_token + states);
    let position = 4;
    let entries = 2 * 12 * (of_token + 2 * position);
    assert_eq!(full.bytes_held() - full.bytes_spare(), entries + states);

    let policy = Policy::h2o(Budget::Tokens(8));
    let mut cache = model.cache(policy.clone()).unwrap();
    prefill(&model, &[&TOKENS], &mut cache, None).unwrap();
    assert_eq!(cache.tokens_kept(0).unwrap(), [8]);
    let config = model.config().clone();
    let plan = MemoryPlan::of(config, folder(), &device(), DType::F32, None).unwrap();
    assert_eq!(plan.weight_bytes(), model.weight_bytes());
    let planned = plan.cache_bytes(&policy, TOKENS.len(), 1).unwrap();
    assert_eq!(planned, cache.bytes_held() - cache.bytes_spare());
}

#[test]
fn states_go_with_rows() {
    let model = load();
    let prompts = [&TOKENS[..], &TOKENS[..7], &TOKENS[4..9]];
    let mut batch = cache(&model);
    prefill(&model, &prompts, &mut batch, None).unwrap();
    batch.select_rows(&[2, 0, 2]).unwrap();
    let mut other = cache(&model);
    prefill(&model, &[&TOKENS[..3]], &mut other, None).unwrap();
    batch.append_rows(&other).unwrap();
    let found = next(&model, &mut batch, &[5, 6, 7, 8]);
    let rows = [(prompts[2], 5), (prompts[0], 6), (prompts[2], 7), (&TOKENS[..3], 8)];
    for (found, (prompt, token)) in found.chunks(96).zip(rows) {
        let expected = after(&model, &[prompt, &[token]].concat());
        assert_close("row", found, &expected, NEAR);
    }
}

#[test]
fn a_prompt_behind_others_is_read_as_if_they_were_one() {
    let model = load();
    let first = [&TOKENS[..9], &TOKENS[..2]];
    let second = [&TOKENS[3..5], &TOKENS[4..11]];
    for chunk in [None, Some(3), Some(1)] {
        let mut cache = cache(&model);
        prefill(&model, &first, &mut cache, chunk).unwrap();
        // Padding comes between a row's tokens, in whole chunks and in parts of one.
        let found = host(prefill(&model, &second, &mut cache, chunk).unwrap());
        for (number, found) in found.chunks(96).enumerate() {
            let expected = after(&model, &[first[number], second[number]].concat());
            assert_close("row", found, &expected, NEAR);
        }
    }
}

#[test]
fn a_failed_call_leaves_states_as_they_were() {
    let model = load();
    let mut cache = cache(&model);
    prefill(&model, &[&TOKENS], &mut cache, None).unwrap();
    let mut untouched = cache.fork();
    let before = (cache.tokens_seen(), cache.bytes_held());
    // Positions end in the second layer, behind a recurrent one.
    let long = [TOKENS; 21].concat();
    let error = model.forward(row(&long), &mut cache).unwrap_err();
    let overflow = Error::Cache(briquette::Error::PositionOverflow { position: 263, max: 256 });
    assert_eq!(error.to_string(), overflow.to_string());
    assert_eq!((cache.tokens_seen(), cache.bytes_held()), before);
    let expected = next(&model, &mut untouched, &[5]);
    assert_eq!(next(&model, &mut cache, &[5]), expected);

    // A prompt that is given up half-way.
    let mut cache = untouched.fork();
    cache.begin_prompt(Prompt::new(6)).unwrap();
    model.forward(row(&TOKENS[..4]), &mut cache).unwrap();
    assert_eq!(cache.tokens_seen(), [17]);
    cache.abandon_prompt().unwrap();
    assert_eq!(cache.tokens_seen(), [13]);
    let expected = next(&model, &mut untouched, &[6]);
    assert_eq!(next(&model, &mut cache, &[6]), expected);

    cache.reset();
    assert_eq!((cache.tokens_seen(), cache.bytes_held()), (vec![], 0));
    let found = host(prefill(&model, &[&TOKENS[..5]], &mut cache, None).unwrap());
    assert_eq!(found, after(&model, &TOKENS[..5]));
}

#[test]
fn a_saved_cache_goes_on_as_it_would_have() {
    let model = load();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prompt");
    for policy in [Policy::full(), Policy::snapkv(Budget::Tokens(40)), Policy::kivi(2)] {
        let mut cache = model.cache(policy.clone()).unwrap();
        let text = [TOKENS; 5].concat();
        prefill(&model, &[&text[..], &text[..50]], &mut cache, None).unwrap();
        cache.save(&path).unwrap();
        let config = model.cache_config(&policy).unwrap();
        let shape = model.cache_shape();
        let mut loaded = KvCache::load(&path, shape, policy.clone(), config, &device()).unwrap();
        assert_eq!(loaded.tokens_seen(), [60, 50]);
        for token in [5, 6] {
            let expected = next(&model, &mut cache, &[token, token]);
            assert_eq!(next(&model, &mut loaded, &[token, token]), expected);
        }
        let config = CacheConfig::default();
        let error = KvCache::load(&path, shape, policy, config, &device()).unwrap_err();
        assert!(error.to_string().contains("the recurrent layers"), "{error}");
    }
}

#[test]
fn what_needs_an_earlier_state_or_another_pass_is_refused() {
    struct Elsewhere;

    impl Attend for Elsewhere {
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

    let model = load();
    let error = model.forward_last_through(row(&TOKENS), &mut Elsewhere).unwrap_err();
    assert!(error.to_string().contains("run the model on a `KvCache`"), "{error}");

    let shape = model.cache_shape();
    let mut plain = KvCache::new(shape, Policy::full(), &device()).unwrap();
    let error = model.forward(row(&TOKENS), &mut plain).unwrap_err();
    assert!(matches!(error, Error::CacheAttention { setting: "recurrent_layers", .. }), "{error}");

    let error = model.cache(Policy::kvzip(Budget::Tokens(8))).unwrap_err();
    assert!(error.to_string().contains("reads a prompt twice"), "{error}");

    let drafts = GenerateOptions { lookup: 3, ..options(8) };
    let error = generate(&model, &TOKENS, &mut cache(&model), &drafts, |_| {}).unwrap_err();
    let refused = matches!(error, Error::Cache(briquette::Error::DraftRefused { .. }));
    assert!(refused && error.to_string().contains("no earlier state to go back to"), "{error}");

    let mut caches = [cache(&model), cache(&model)];
    let error = prefill_shared(&model, &[&TOKENS], &mut caches).unwrap_err();
    assert!(error.to_string().contains("it has recurrent layers"), "{error}");
}

#[test]
fn the_layers_that_draft_tokens_are_left_out() {
    let bytes = fs::read(folder().join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let load_with = |name: &str| {
        let mut tensors: HashMap<_, _> =
            stored.iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        tensors.insert(name.to_owned(), stored.tensor("model.norm.weight").unwrap());
        let bytes = safetensors::serialize(tensors, None).unwrap();
        let config = ModelConfig::from_folder(folder()).unwrap();
        Model::from_safetensors(config, bytes, &device(), DType::F32)
    };
    let model = load_with("mtp.norm.weight").unwrap();
    assert_eq!(logits(&model, &TOKENS), logits(&load(), &TOKENS));
    let error = load_with("model.mtp.weight").unwrap_err();
    assert!(matches!(error, Error::ExtraTensor { .. }), "{error}");
}

#[test]
fn absent_keys_take_the_defaults_of_transformers() {
    let config = ModelConfig::from_json(r#"{ "model_type": "qwen3_next" }"#).unwrap();
    let delta_net = config.delta_net.as_ref().unwrap();
    assert_eq!((config.num_hidden_layers, delta_net.layers.len()), (48, 36));
    assert!((0..48).all(|layer| delta_net.layers.contains(&layer) != (layer % 4 == 3)));
    assert_eq!((delta_net.key_heads, delta_net.value_heads, delta_net.kernel), (16, 32, 4));
    assert_eq!((delta_net.key_dim, delta_net.value_dim), (128, 128));
    let shape = CacheShape { layers: 12, query_heads: 16, kv_heads: 2, head_dim: 256 };
    assert_eq!(config.cache_shape(), shape);
    assert_eq!(config.rope.partial_rotary_factor, 0.25);
    let experts = config.experts.unwrap();
    assert_eq!((experts.experts, experts.experts_per_token), (512, 10));
    assert_eq!((experts.intermediate_size, experts.shared_intermediate_size), (512, Some(512)));
    assert!(experts.norm_topk_prob && experts.dense_layers.is_empty());

    let keys = json!({ "layer_types": null, "full_attention_interval": 2, "mlp_only_layers": [] });
    let config = with(keys).unwrap();
    assert_eq!(config.delta_net.unwrap().layers.into_iter().collect::<Vec<_>>(), [0, 2]);
    assert!(config.experts.unwrap().dense_layers.is_empty());
    assert_eq!(with(json!({ "num_experts": 0 })).unwrap().experts, None);
}

#[test]
fn settings_that_would_be_computed_wrongly_are_refused() {
    let sliding = json!(["linear_attention", "full_attention", "sliding_attention"]);
    for (key, value) in [("layer_types", sliding), ("hidden_act", json!("gelu"))] {
        assert_unsupported(with(json!({ key: value })), key);
    }
    let recurrent = json!(["linear_attention", "linear_attention", "linear_attention"]);
    assert_invalid(with(json!({ "layer_types": recurrent })), "layer_types");
    for (key, value) in [
        ("linear_num_key_heads", 0),
        ("linear_num_key_heads", 3),
        ("linear_num_value_heads", 0),
        ("linear_key_head_dim", 0),
        ("linear_value_head_dim", 1 << 17),
        ("linear_conv_kernel_dim", 1),
        ("full_attention_interval", 0),
        ("decoder_sparse_step", 0),
        ("shared_expert_intermediate_size", 0),
        ("num_experts_per_tok", 5),
    ] {
        let named = if (key, value) == ("linear_num_key_heads", 3) {
            "linear_num_value_heads"
        } else {
            key
        };
        assert_invalid(with(json!({ key: value })), named);
    }
}
