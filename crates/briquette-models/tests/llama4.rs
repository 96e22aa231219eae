//! The keys of Llama 4. Its logits are among those of all architectures.

mod common;

use std::collections::BTreeSet;

use briquette::{Budget, Policy, ops::Window};
use briquette_models::{
    Architecture, AttnTemperature, Error, Model, ModelConfig, QkNorm, RopeScaling, Routing,
    generate,
};
use burn::tensor::DType;
use common::{assert_invalid, assert_unsupported, config_with, device, fixtures, options};
use serde_json::{Value, json};

fn config(keys: Value) -> Result<ModelConfig, Error> {
    config_with("llama4", &keys)
}

#[test]
fn a_file_without_keys_is_scout() {
    let config = ModelConfig::from_json(r#"{ "model_type": "llama4_text" }"#).unwrap();
    assert_eq!(config.architecture, Architecture::Llama4);
    let sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers);
    assert_eq!((sizes, config.vocab_size), ((5120, 16_384, 48), 202_048));
    let heads = (config.num_attention_heads, config.num_key_value_heads, config.head_dim);
    assert_eq!((heads, config.max_position_embeddings), ((40, 8, 128), 131_072));
    let experts = config.experts.as_ref().unwrap();
    assert_eq!((experts.experts, experts.experts_per_token), (16, 1));
    assert_eq!((experts.intermediate_size, experts.shared_intermediate_size), (8192, Some(8192)));
    assert_eq!((experts.routing, experts.dense_layers.len()), (Routing::InputSigmoid, 0));
    let without_rope: BTreeSet<usize> = (3..48).step_by(4).collect();
    assert_eq!(config.layers_without_rope, without_rope);
    assert_eq!([2, 3].map(|layer| config.window(layer)), [Some(Window::Chunk(8192)), None]);
    assert_eq!(config.qk_norm, Some(QkNorm::Unweighted));
    let temperature = AttnTemperature { floor_scale: 8192.0, attn_scale: 0.1 };
    assert_eq!(config.attn_temperature, Some(temperature));
}

#[test]
fn the_published_form_of_the_keys_is_read() {
    let given = config(json!({})).unwrap();
    let old = json!({
        "rope_parameters": null, "rope_theta": 500_000.0, "attn_temperature_tuning": 4,
        "layer_types": null, "rope_scaling": {
            "factor": 8.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64, "rope_type": "llama3",
        },
    });
    assert_eq!(config(old).unwrap(), given);
    let sparse = |keys: Value| config(keys).unwrap().experts.unwrap().dense_layers;
    assert_eq!(sparse(json!({ "moe_layers": null })), BTreeSet::from([0, 2]));
    let every = json!({ "moe_layers": null, "interleave_moe_layer_step": 1 });
    assert_eq!(sparse(every), BTreeSet::new());
    let none = json!({ "no_rope_layers": [], "no_rope_layer_interval": 3, "layer_types": null });
    assert_eq!(config(none).unwrap().layers_without_rope, BTreeSet::from([2]));
    let plain = config(json!({ "attn_temperature_tuning": 0, "use_qk_norm": false })).unwrap();
    assert_eq!((plain.attn_temperature, plain.qk_norm), (None, None));
    let full = json!({ "layer_types": vec!["full_attention"; 3], "attention_chunk_size": null });
    assert_eq!(config(full).unwrap().sliding_window, None);
}

#[test]
fn wavelengths_at_both_bounds_of_llama3_are_high() {
    let scaling = given_scaling();
    assert!(matches!(
        scaling,
        RopeScaling::Llama3 { low_freq_factor: 1.0, high_freq_factor: 1.0, .. }
    ));
    let frequencies = config(json!({})).unwrap().rope.inverse_frequencies(16, 256);
    assert!(frequencies.iter().all(|frequency| frequency.is_finite() && *frequency > 0.0));
    let (first, last) = (frequencies[0], frequencies[7]);
    assert_eq!(first, 1.0);
    assert!((f64::from(last) * 8.0 / 500_000_f64.powf(-14.0 / 16.0) - 1.0).abs() < 1e-6);
}

fn given_scaling() -> RopeScaling {
    config(json!({})).unwrap().rope.scaling
}

#[test]
fn keys_that_make_no_sense_are_refused_by_name() {
    let yarn = json!({ "rope_type": "yarn", "factor": 4.0 });
    assert_unsupported(config(json!({ "rope_parameters": yarn })), "rope_type");
    let sliding = vec!["sliding_attention"; 3];
    assert_unsupported(config(json!({ "layer_types": sliding })), "layer_types");
    let backwards = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0,
    });
    for (keys, named) in [
        (json!({ "rope_parameters": backwards }), "high_freq_factor"),
        (json!({ "attention_chunk_size": 0 }), "attention_chunk_size"),
        (json!({ "attention_chunk_size": null }), "attention_chunk_size"),
        (json!({ "no_rope_layers": [1, 0] }), "the length of no_rope_layers"),
        (json!({ "no_rope_layers": null, "no_rope_layer_interval": 0 }), "no_rope_layer_interval"),
        (json!({ "layer_types": ["full_attention"] }), "the length of layer_types"),
        (json!({ "moe_layers": [3] }), "moe_layers"),
        (
            json!({ "moe_layers": null, "interleave_moe_layer_step": 0 }),
            "interleave_moe_layer_step",
        ),
        (json!({ "num_experts_per_tok": 5 }), "num_experts_per_tok"),
        (json!({ "num_local_experts": 0 }), "num_local_experts"),
        (json!({ "floor_scale": 0 }), "floor_scale"),
        (json!({ "attn_scale": 0.0 }), "attn_scale"),
        (json!({ "intermediate_size_mlp": 0 }), "intermediate_size"),
        (json!({ "intermediate_size": 0 }), "intermediate_size"),
    ] {
        assert_invalid(config(keys), named);
    }
}

#[test]
fn a_layer_holds_less_than_a_chunk_and_the_policy_has_the_others() {
    let model = Model::load(fixtures().join("llama4"), &device(), DType::F32).unwrap();
    let mut cache = model.cache(Policy::h2o(Budget::Tokens(24))).unwrap();
    generate(&model, &[5; 40], &mut cache, &options(20), |_| {}).unwrap();
    let kept = [0, 1, 2].map(|layer| cache.tokens_kept(layer).unwrap()[0]);
    assert_eq!(kept, [15, 24, 15]);
}
