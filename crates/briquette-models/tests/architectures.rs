//! Every architecture beside `transformers`, on the tiny random checkpoints in `fixtures`, which
//! `tests/goldens/architectures.py` makes.

mod common;

use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc};

use briquette::{
    Budget, CacheShape, HeadScores, KvCache, Policy, Profile, QueryStatistics, methods,
};
use briquette_models::{
    Architecture, Error, Model, ModelConfig, generate, generate_batch, prefill,
};
use burn::tensor::DType;
use common::{
    assert_close, assert_invalid, assert_unsupported, cache, config_with, device, fixtures, host,
    logits, options, row,
};
use safetensors::SafeTensors;
use serde_json::{Value, json};

const CHECKPOINTS: [&str; 30] = [
    "llama",
    "llama-linear",
    "llama-dynamic",
    "llama-yarn",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "phi3",
    "phi3-partial",
    "phi3-window",
    "smollm3",
    "falcon",
    "qwen3-moe",
    "mixtral",
    "gemma2",
    "gemma3",
    "olmo2",
    "olmo3",
    "olmo3-yarn",
    "glm",
    "glm4",
    "granite",
    "deepseek-v3",
    "gpt-oss",
    "gpt-oss-mxfp4",
    "qwen3-next",
    "llama4",
    "gemma3-multimodal",
];
const VOCABULARY: usize = 96;

fn folder(name: &str) -> PathBuf {
    fixtures().join(name)
}

fn load(name: &str) -> Model {
    Model::load(folder(name), &device(), DType::F32).unwrap()
}

/// Outputs of `transformers`.
struct Expected {
    tokens: Vec<u32>,
    /// `[tokens, VOCABULARY]`, or of the last tokens.
    logits: Vec<f32>,
    greedy: Vec<u32>,
}

impl Expected {
    fn read(name: &str, prefix: &str) -> Self {
        let bytes = fs::read(folder(name).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let data = |field| file.tensor(&format!("{prefix}{field}")).unwrap().data().to_vec();
        let ids = |field| {
            let numbers = data(field);
            let ids = numbers.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
            ids.map(|id| u32::try_from(id).unwrap()).collect()
        };
        let logits = data("logits");
        let logits = logits.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        Self { tokens: ids("tokens"), logits: logits.collect(), greedy: ids("greedy") }
    }

    /// The logits after a token of the prompt.
    fn after(&self, token: usize) -> &[f32] {
        &self.logits[token * VOCABULARY..(token + 1) * VOCABULARY]
    }
}

/// How far logits may be off.
const NEAR: f32 = 1e-4;

#[test]
fn logits_of_a_prompt_are_those_of_transformers() {
    for name in CHECKPOINTS {
        let (model, expected) = (load(name), Expected::read(name, ""));
        assert_close(name, &logits(&model, &expected.tokens), &expected.logits, NEAR);
    }
}

#[test]
fn logits_are_the_same_token_by_token_and_in_chunks() {
    for name in CHECKPOINTS {
        let (model, expected) = (load(name), Expected::read(name, ""));
        let mut one_by_one = cache(&model);
        for (place, token) in expected.tokens.iter().enumerate() {
            let logits = model.forward_last(row(&[*token]), &mut one_by_one).unwrap();
            assert_close(name, &host(logits), expected.after(place), NEAR);
        }
        for chunk in [5, 31] {
            let prompts = [&expected.tokens];
            let logits = prefill(&model, &prompts, &mut cache(&model), Some(chunk)).unwrap();
            let last = expected.after(expected.tokens.len() - 1);
            assert_close(name, &host(logits), last, NEAR);
        }
    }
}

#[test]
fn logits_are_the_same_in_a_batch_padded_on_the_left() {
    for name in CHECKPOINTS {
        let (model, expected) = (load(name), Expected::read(name, ""));
        let lengths = [expected.tokens.len(), 17, 1];
        let prompts = lengths.map(|length| &expected.tokens[..length]);
        for chunk in [None, Some(7)] {
            let logits = host(prefill(&model, &prompts, &mut cache(&model), chunk).unwrap());
            for (logits, length) in logits.chunks(VOCABULARY).zip(lengths) {
                assert_close(name, logits, expected.after(length - 1), NEAR);
            }
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for name in CHECKPOINTS {
        let (model, expected) = (load(name), Expected::read(name, ""));
        assert_eq!(expected.greedy.len(), 64);
        // A second row of the batch comes along.
        let prompts = [&expected.tokens[..], &expected.tokens[..9]];
        let (rows, _) =
            generate_batch(&model, &prompts, &mut cache(&model), &options(64), |_, _| {}).unwrap();
        assert_eq!(rows[0].tokens, expected.greedy, "{name}");
    }
}

#[test]
fn every_architecture_computes_in_half_precision() {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    for name in CHECKPOINTS {
        let expected = Expected::read(name, "");
        for (dtype, allowed) in [(DType::F16, 0.01), (DType::BF16, 0.08)] {
            let model = Model::load(folder(name), &device(), dtype).unwrap();
            let logits = model.forward(row(&expected.tokens), &mut cache(&model)).unwrap();
            assert_eq!(logits.dtype(), dtype, "{name}");
            let logits = host(logits);
            let pairs = logits.iter().zip(&expected.logits);
            let off = norm(&mut pairs.map(|(a, b)| a - b));
            let off = off / norm(&mut expected.logits.iter().copied());
            assert!(off <= allowed, "{name} in {dtype:?}: differs by {off} of the logits");
        }
    }
}

#[test]
fn frequencies_of_a_longer_context_are_chosen_before_the_text() {
    for (name, greedy) in [("phi3", 16), ("llama-dynamic", 0)] {
        let expected = Expected::read(name, "long_");
        assert_eq!((expected.tokens.len(), expected.greedy.len()), (160, greedy));
        let short = load(name);
        assert_eq!(short.config().max_position_embeddings, 128);
        let refused = prefill(&short, &[&expected.tokens], &mut cache(&short), None);
        assert!(matches!(
            refused,
            Err(Error::PromptTooLong { tokens: 160, context: 128, why: Some(_) })
        ));

        // Dynamic frequencies are those of the text's own length.
        let context = if greedy == 0 { 160 } else { 256 };
        let config = short.config().clone().with_context(context).unwrap();
        let long = Model::load_as(config, folder(name), &device(), DType::F32).unwrap();
        let logits = prefill(&long, &[&expected.tokens], &mut cache(&long), Some(50)).unwrap();
        assert_close(name, &host(logits), &expected.logits, NEAR);
        let (text, _) =
            generate(&long, &expected.tokens, &mut cache(&long), &options(greedy), |_| {}).unwrap();
        assert_eq!(text.tokens, expected.greedy, "{name}");
    }
}

#[test]
fn a_context_beyond_the_model_is_refused() {
    // `max_position_embeddings`, the longest that factors stretch to, beyond a sliding window.
    for (name, longest) in [("qwen2", 256), ("phi3", 256), ("llama-dynamic", 256), ("mistral", 256)]
    {
        let config = ModelConfig::from_file(folder(name).join("config.json")).unwrap();
        assert_eq!(config.clone().with_context(longest).unwrap().max_position_embeddings, longest);
        for context in [0, longest + 1] {
            let error = config.clone().with_context(context).unwrap_err();
            assert!(matches!(error, Error::InvalidSetting { key: "context", .. }), "{name}");
        }
    }
}

#[test]
fn a_sliding_window_does_not_end_the_context() {
    let in_cache = Policy::streaming_llm(Budget::Tokens(16));
    for name in ["mistral-window", "gemma2", "gemma3"] {
        let model = load(name);
        assert_eq!(model.config().sliding_window, Some(16.into()), "{name}");
        assert_eq!(model.context(&Policy::full()), Some(256), "{name}");
        // Windowed layers encode positions where tokens were written.
        assert_eq!(model.context(&in_cache), Some(256), "{name}");
    }
    assert_eq!(load("qwen2").context(&in_cache), None);
    // No layer of Llama has a window, so texts end where `transformers` would forget.
    let llama = with("llama", json!({ "sliding_window": 16 })).unwrap();
    assert_eq!((llama.max_position_embeddings, llama.sliding_layers.len()), (16, 0));
    assert_invalid(llama.with_context(17), "context");
}

#[test]
fn windows_save_memory_and_leave_the_other_layers_to_the_policy() {
    let (model, expected) = (load("gemma2"), Expected::read("gemma2", ""));
    let held = |policy: Policy| {
        let mut cache = model.cache(policy).unwrap();
        generate(&model, &expected.tokens, &mut cache, &options(64), |_| {}).unwrap();
        let kept = (0..3).map(|layer| cache.tokens_kept(layer).unwrap()[0]).collect::<Vec<_>>();
        (kept, cache.bytes_held() - cache.bytes_spare())
    };
    let (kept, bytes) = held(Policy::full());
    assert_eq!(kept, [15, 95, 15]);
    let without = 95 * model.cache_shape().token_bytes(DType::F32);
    assert!(2 * bytes < without, "{bytes} of {without}");
    let (kept, fewer) = held(Policy::h2o(Budget::Tokens(24)));
    assert_eq!(kept, [15, 24, 15]);
    assert!(fewer < bytes, "{fewer} of {bytes}");
}

#[test]
fn a_policy_without_a_layer_to_compress_is_refused() {
    let model = load("mistral-window");
    let error = model.cache(Policy::h2o(Budget::Tokens(8))).unwrap_err();
    assert!(matches!(error, Error::NoLayerToCompress { window: 16, .. }), "{error}");
    // Within the window no layer has one.
    let config = model.config().clone().with_context(16).unwrap();
    let short = Model::load_as(config, folder("mistral-window"), &device(), DType::F32).unwrap();
    let mut cache = short.cache(Policy::h2o(Budget::Tokens(8))).unwrap();
    generate(&short, &[5; 12], &mut cache, &options(4), |_| {}).unwrap();
    assert_eq!(cache.tokens_kept(0).unwrap(), [8]);
}

#[test]
fn a_cache_that_would_compute_another_attention_is_refused() {
    for (name, setting) in
        [("gemma2", "softmax_scale"), ("mistral-window", "windows"), ("granite", "softmax_scale")]
    {
        let model = load(name);
        let mut plain = KvCache::new(model.cache_shape(), Policy::full(), &device()).unwrap();
        let error = model.forward(row(&[5, 6]), &mut plain).unwrap_err();
        assert!(
            matches!(error, Error::CacheAttention { setting: found, .. } if found == setting),
            "{name}: {error}"
        );
    }
}

/// What is refused of a policy that looks at all layers.
const BESIDE_WINDOWS: &str = "the policy of a model that has layers with a window";

#[test]
fn every_policy_runs_on_every_architecture() {
    let mut refused = BTreeSet::new();
    for name in CHECKPOINTS {
        let (model, expected) = (load(name), Expected::read(name, ""));
        let text = [&expected.tokens[..], &expected.greedy].concat();
        let prompts = [&text[..60], &text[..45]];
        for method in methods() {
            let policy = Policy::named(&method.name, None).unwrap();
            let policy = policy.with_default_budget(Budget::Tokens(40));
            let reads = policy.reads_profile();
            let policy =
                if reads { policy.with_profile(profile(model.cache_shape())) } else { policy };
            let config = model.config();
            let mut cache = match model.cache(policy) {
                Ok(cache) => cache,
                Err(Error::NoLayerToCompress { .. }) => {
                    assert_eq!(config.sliding_layers.len(), config.num_hidden_layers, "{name}");
                    continue;
                }
                // What looks at all layers has no place beside windows; what merges, quantizes or
                // reads twice has none where values lie in keys, what reads twice none beside
                // recurrent layers.
                Err(Error::Cache(briquette::Error::InvalidParameter {
                    parameter: parameter @ (BESIDE_WINDOWS | "value_dim" | "recurrent_layers"),
                    ..
                })) => {
                    assert_eq!(config.latent.is_some(), parameter == "value_dim", "{name}");
                    assert_eq!(
                        config.sliding_layers.is_empty(),
                        parameter != BESIDE_WINDOWS,
                        "{name}"
                    );
                    let recurrent = parameter == "recurrent_layers";
                    assert_eq!(config.delta_net.is_some(), recurrent, "{name}");
                    refused.insert((parameter, method.name));
                    continue;
                }
                Err(error) => panic!("{name}, {}: {error}", method.name),
            };
            let (rows, _) = generate_batch(&model, &prompts, &mut cache, &options(6), |_, _| {})
                .unwrap_or_else(|error| panic!("{name}, {}: {error}", method.name));
            assert!(rows.iter().all(|row| row.tokens.len() == 6), "{name}, {}", method.name);
            assert_eq!(cache.tokens_seen(), [65, 50], "{name}, {}", method.name);
        }
    }
    let beside_windows =
        ["cake", "d2o", "ems-pyramidkv", "kvcompose", "kvzip", "kvzip-plus", "pyramidkv"];
    let in_keys = [
        "cam",
        "compresskv-kivi",
        "d2o",
        "ems",
        "ems-needle",
        "ems-pyramidkv",
        "fp8",
        "kivi",
        "kvcompose",
        "kvmerger",
        "kvmerger-35",
        "kvmerger-50",
        "kvzip",
        "kvzip-plus",
    ];
    let expected = beside_windows.map(|name| (BESIDE_WINDOWS, name.to_owned())).into_iter();
    let expected = expected.chain(in_keys.map(|name| ("value_dim", name.to_owned())));
    let reads_twice = ["kvcompose", "kvzip", "kvzip-plus"];
    let reads_twice = reads_twice.map(|name| ("recurrent_layers", name.to_owned()));
    assert_eq!(refused, expected.chain(reads_twice).collect());
}

/// Statistics of queries that differ from head to head.
fn queries(shape: CacheShape) -> QueryStatistics {
    let number = |layer: usize, head: usize, channel: usize| {
        ((3 * layer + 5 * head + 7 * channel) % 13) as f64 / 16.0 - 0.375
    };
    let table = |heads: usize, width: usize, least: f64| -> Vec<Vec<Vec<f64>>> {
        let of_head = |layer, head| {
            (0..width).map(|channel| number(layer, head, channel).max(least)).collect()
        };
        (0..shape.layers)
            .map(|layer| (0..heads).map(|head| of_head(layer, head)).collect())
            .collect()
    };
    let reach = |layer| (0..shape.kv_heads).map(|head| 0.5 + number(layer, head, 0)).collect();
    QueryStatistics {
        directions: table(shape.kv_heads, shape.head_dim, -1.0),
        means: table(shape.query_heads, shape.head_dim, -1.0),
        lengths: table(shape.query_heads, shape.head_dim / 2, 0.0625),
        reach: (0..shape.layers).map(reach).collect(),
    }
}

/// A score for every head and an error for every layer.
fn profile(shape: CacheShape) -> Arc<Profile> {
    let scores: Vec<Vec<f64>> = (0..shape.layers)
        .map(|layer| (0..shape.query_heads).map(|head| (1 + layer + head) as f64 / 10.0).collect())
        .collect();
    let [semantic, copy_paste, headkv] = [scores.clone(), scores.clone(), scores];
    let heads = HeadScores { semantic, copy_paste, headkv };
    let layer_errors = (0..shape.layers).map(|layer| 0.1 + 0.3 * layer as f64).collect();
    Arc::new(Profile::new(shape, heads, layer_errors).with_queries(queries(shape)))
}

/// The configuration of a checkpoint with other keys.
fn with(name: &str, keys: Value) -> Result<ModelConfig, Error> {
    config_with(name, &keys)
}

#[test]
fn what_an_architecture_has_and_this_has_not_is_refused_by_name() {
    let unsupported = [
        ("gemma3", json!({ "attn_logit_softcapping": 50.0 }), "attn_logit_softcapping"),
        ("gemma3", json!({ "use_bidirectional_attention": true }), "use_bidirectional_attention"),
        ("falcon", json!({ "alibi": true }), "alibi"),
        ("falcon", json!({ "new_decoder_architecture": true }), "new_decoder_architecture"),
        ("falcon", json!({ "multi_query": false }), "multi_query"),
        ("falcon", json!({ "parallel_attn": false }), "parallel_attn"),
        ("falcon", json!({ "activation": "relu" }), "hidden_act"),
        ("phi3", json!({ "rope_parameters": { "rope_type": "other" } }), "rope_type"),
    ];
    for (name, keys, named) in unsupported {
        assert_unsupported(with(name, keys), named);
    }
    let invalid = [
        ("smollm3", json!({ "no_rope_layers": [1, 0] }), "the length of no_rope_layers"),
        ("qwen3-moe", json!({ "decoder_sparse_step": 0 }), "decoder_sparse_step"),
        ("qwen3-moe", json!({ "num_experts_per_tok": 5 }), "num_experts_per_tok"),
        ("mixtral", json!({ "num_local_experts": 0 }), "num_local_experts"),
        ("gemma3", json!({ "layer_types": ["full_attention"] }), "the length of layer_types"),
        ("mistral", json!({ "sliding_window": 0 }), "sliding_window"),
        (
            "phi3-partial",
            json!({ "partial_rotary_factor": 0.2, "rope_parameters": null }),
            "partial_rotary_factor",
        ),
        (
            "phi3",
            json!({ "rope_parameters": { "rope_type": "longrope",
            "short_factor": [1.0], "long_factor": [1.0] } }),
            "the length of short_factor",
        ),
    ];
    for (name, keys, named) in invalid {
        assert_invalid(with(name, keys), named);
    }
}

#[test]
fn files_of_older_versions_mean_the_same() {
    let longrope = |kind: &str| {
        json!({ "rope_parameters": null, "rope_theta": 10000.0, "rope_scaling": {
            "type": kind, "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8],
        } })
    };
    // Phi-3 says `original_max_position_embeddings` outside.
    assert_eq!(with("phi3", longrope("su")).unwrap(), with("phi3", longrope("longrope")).unwrap());

    let old = with(
        "gemma3",
        json!({
            "rope_parameters": null, "layer_types": null, "sliding_window_pattern": 2,
            "rope_theta": 50000.0, "rope_scaling": { "rope_type": "linear", "factor": 8.0 },
            "rope_local_base_freq": 10000.0,
        }),
    );
    assert_eq!(old.unwrap(), load("gemma3").config().clone());

    let no_list = json!({ "no_rope_layers": null, "no_rope_layer_interval": 3 });
    let config = with("smollm3", no_list).unwrap();
    assert_eq!(config.layers_without_rope.into_iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn each_architecture_has_a_checkpoint_and_is_picked_by_its_name() {
    let mut found = Vec::new();
    for name in CHECKPOINTS {
        let path = folder(name).join("config.json");
        let file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let config = ModelConfig::from_file(path).unwrap();
        let named = file["text_config"]["model_type"].as_str();
        let named = named.or(file["model_type"].as_str()).unwrap();
        assert_eq!(config.architecture.model_type(), named, "{name}");
        found.push(config.architecture);
    }
    for architecture in Architecture::all() {
        assert!(found.contains(&architecture), "{architecture:?}");
    }
}
