//! Keys and values of `config.json`, accepted and refused.

mod common;

use briquette_models::{Error, ModelConfig, RopeConfig, RopeScaling};
use common::{assert_invalid, assert_unsupported, with_keys};
use serde_json::{Value, json};

fn read(keys: Value) -> Result<ModelConfig, Error> {
    let config = json!({
        "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4,
    });
    ModelConfig::from_json(&with_keys(config, &keys).to_string())
}

#[test]
fn absent_keys_take_the_defaults_of_transformers() {
    let config = read(json!({ "initializer_range": 0.02, "use_cache": true })).unwrap();
    assert_eq!(config.num_key_value_heads, 4);
    assert_eq!(config.head_dim, 8);
    assert_eq!(config.rms_norm_eps, 1e-6);
    assert_eq!(config.rope.theta, 10_000.0);
    assert_eq!(config.rope.scaling, RopeScaling::Default);
    assert_eq!(config.max_position_embeddings, 2048);
    assert!(!config.tie_word_embeddings && !config.attention_bias && !config.mlp_bias);
    assert!(config.eos_token_ids.is_empty());
}

/// As `transformers` 5.2 does: the default is that of an absent key.
#[test]
fn a_rotated_part_that_is_null_is_all() {
    for (family, absent) in [("glm", 0.5), ("glm4", 0.5), ("qwen3_next", 0.25)] {
        let part = |keys: Value| {
            let keys = with_keys(json!({ "model_type": family }), &keys).to_string();
            ModelConfig::from_json(&keys).unwrap().rope.partial_rotary_factor
        };
        assert_eq!(part(json!({})), absent, "{family}");
        assert_eq!(part(json!({ "partial_rotary_factor": null })), 1.0, "{family}");
        assert_eq!(part(json!({ "partial_rotary_factor": 0.75 })), 0.75, "{family}");
        let inside =
            json!({ "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75 });
        assert_eq!(part(json!({ "rope_parameters": inside })), 0.75, "{family}");
    }
}

#[test]
fn special_tokens_come_as_numbers_lists_null_or_minus_one() {
    let ids = |eos: Value| read(json!({ "eos_token_id": eos })).unwrap().eos_token_ids;
    assert_eq!(ids(json!(2)), [2]);
    assert_eq!(ids(json!([2, 7])), [2, 7]);
    assert!(ids(json!(null)).is_empty());
    let config = read(json!({ "pad_token_id": -1, "bos_token_id": 1 })).unwrap();
    assert_eq!((config.pad_token_id, config.bos_token_id), (None, Some(1)));
}

#[test]
fn rope_is_read_in_the_old_and_the_new_form() {
    let scaling = json!({
        "rope_type": "llama3", "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    });
    let old = read(json!({ "rope_theta": 500000.0, "rope_scaling": scaling })).unwrap();
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(500000.0);
    let new = read(json!({ "rope_parameters": parameters })).unwrap();
    assert_eq!(old, new);
    assert_eq!(old.rope.theta, 500_000.0);

    let linear = read(json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } })).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let default = read(json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 5e3 } }));
    assert_eq!(default.unwrap().rope.theta, 5e3);
}

#[test]
fn frequencies_are_those_of_transformers() {
    // `ROPE_INIT_FUNCTIONS` of transformers 5.2.0, in f32: Llama 3.2 1B, and one with `linear`.
    let llama3 = RopeConfig {
        theta: 500_000.0,
        partial_rotary_factor: 1.0,
        scaling: RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        },
    };
    let expected = [
        1.0,
        0.6636013,
        0.44036663,
        0.29222783,
        0.19392276,
        0.12868738,
        0.0853971,
        0.05666962,
        0.03760603,
        0.024955409,
        0.01656044,
        0.010989529,
        0.007292665,
        0.0048394212,
        0.003211446,
        0.001290548,
        0.0004295567,
        9.708286e-05,
        1.9461639e-05,
        1.29147675e-05,
        8.570256e-06,
        5.6872323e-06,
        3.7740544e-06,
        2.5044671e-06,
        1.6619674e-06,
        1.1028836e-06,
        7.3187493e-07,
        4.856731e-07,
        3.222933e-07,
        2.1387423e-07,
        1.419272e-07,
        9.4183065e-08,
    ];
    assert_eq!(llama3.inverse_frequencies(64, 131_072), expected);

    let linear = RopeConfig {
        theta: 10_000.0,
        partial_rotary_factor: 1.0,
        scaling: RopeScaling::Linear { factor: 3.0 },
    };
    let expected = [
        0.33333334,
        0.10540926,
        0.033333335,
        0.010540926,
        0.0033333332,
        0.0010540927,
        0.00033333336,
        0.000105409265,
    ];
    assert_eq!(linear.inverse_frequencies(16, 2048), expected);
}

#[test]
fn what_would_be_computed_wrongly_is_refused() {
    let unsupported = [
        (json!({ "hidden_act": "relu" }), "hidden_act"),
        (json!({ "rope_scaling": { "type": "ntk", "factor": 2.0 } }), "rope_type"),
        (json!({ "rope_parameters": { "full_attention": { "factor": 2.0 } } }), "rope_parameters"),
        (json!({ "partial_rotary_factor": 0.5 }), "partial_rotary_factor"),
        (json!({ "layer_types": ["chunked_attention", "full_attention"] }), "layer_types"),
        // `transformers` lets tokens see those behind them.
        (json!({ "is_causal": false }), "is_causal"),
        (json!({ "is_causal": null }), "is_causal"),
    ];
    for (keys, named) in unsupported {
        assert_unsupported(read(keys), named);
    }
    let invalid = [
        (json!({ "num_key_value_heads": 3 }), "num_attention_heads"),
        (json!({ "num_key_value_heads": 0 }), "num_key_value_heads"),
        (json!({ "num_attention_heads": 5 }), "hidden_size"),
        (json!({ "head_dim": 7 }), "head_dim"),
        (json!({ "vocab_size": 0 }), "vocab_size"),
        (json!({ "rms_norm_eps": 0.0 }), "rms_norm_eps"),
        (json!({ "rope_theta": -1.0 }), "rope_theta"),
        (json!({ "rope_scaling": { "rope_type": "linear" } }), "factor"),
        (json!({ "rope_scaling": { "type": "dynamic", "factor": 0.5 } }), "factor"),
        (json!({ "partial_rotary_factor": 0.0 }), "partial_rotary_factor"),
        (json!({ "rope_scaling": { "rope_type": "longrope", "factor": 2.0 } }), "short_factor"),
        (
            json!({ "rope_scaling": { "type": "yarn", "original_max_position_embeddings": 1 } }),
            "original_max_position_embeddings",
        ),
        (json!({ "rope_scaling": { "factor": 2.0 } }), "rope_type"),
        (json!({ "layer_types": ["sliding_attention", "full_attention"] }), "sliding_window"),
        (json!({ "layer_types": ["full_attention"] }), "the length of layer_types"),
        (json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } }), "low_freq_factor"),
    ];
    for (keys, named) in invalid {
        assert_invalid(read(keys), named);
    }
}

#[test]
fn a_method_of_quantization_is_named() {
    for (keys, named) in [
        (json!({ "quant_method": "awq", "bits": 4, "group_size": 128 }), "AWQ"),
        (json!({ "quant_method": "gptq", "bits": 4, "desc_act": false }), "GPTQ"),
        (json!({ "quant_method": "bitsandbytes", "load_in_4bit": true }), "bitsandbytes"),
        (json!({ "load_in_8bit": true }), "bitsandbytes"),
        (json!({ "quant_method": "fp8", "weight_block_size": [128, 128] }), "FP8"),
        (json!({ "quant_method": "mxfp4" }), "MXFP4"),
        (json!({ "quant_method": "compressed-tensors" }), "compressed-tensors"),
        (json!({ "bits": 4 }), "a method without a name"),
    ] {
        let error = read(json!({ "quantization_config": keys })).unwrap_err();
        assert!(matches!(&error, Error::QuantizedWeights { method } if method == named), "{error}");
        let text = error.to_string();
        assert!(text.contains("--quantize") && text.contains("GGUF"), "{text}");
    }
    read(json!({ "quantization_config": null })).unwrap();
}

#[test]
fn another_family_is_named_even_if_its_keys_differ() {
    let error = ModelConfig::from_json(r#"{ "model_type": "gpt2", "n_embd": 768 }"#);
    assert!(matches!(error, Err(Error::ModelType { found, .. }) if found == "gpt2"));
    assert!(matches!(ModelConfig::from_json("{"), Err(Error::Json { .. })));
    let error = ModelConfig::from_json("{}").unwrap_err();
    assert_eq!(error.to_string(), "config.json: missing field `model_type` at line 1 column 2");
    let error = ModelConfig::from_json("\u{feff}{}").unwrap_err();
    assert!(matches!(error, Error::ByteOrderMark { .. }), "{error}");
}

#[test]
fn a_file_of_one_key_is_the_first_model_of_its_type() {
    let config = ModelConfig::from_json(r#"{ "model_type": "llama" }"#).unwrap();
    let sizes = (config.hidden_size, config.intermediate_size, config.num_hidden_layers);
    assert_eq!((sizes, config.vocab_size), ((4096, 11_008, 32), 32_000));
    let config = ModelConfig::from_json(r#"{ "model_type": "mistral" }"#).unwrap();
    assert_eq!((config.num_key_value_heads, config.sliding_window), (8, Some(4096.into())));
    // `null` is no window, where an absent key is one.
    let none = r#"{ "model_type": "mistral", "sliding_window": null }"#;
    assert_eq!(ModelConfig::from_json(none).unwrap().sliding_window, None);
    let gemma = ModelConfig::from_json(r#"{ "model_type": "gemma2" }"#).unwrap();
    assert_eq!((gemma.attn_logit_softcapping, gemma.sliding_layers.len()), (Some(50.0), 13));
}

#[test]
fn rope_scaling_goes_before_parameters_without_one() {
    let linear = json!({ "rope_type": "linear", "factor": 4.0 });
    let beside = |parameters: Value| {
        read(json!({ "rope_scaling": linear, "rope_parameters": parameters })).map(|c| c.rope)
    };
    let expected = read(json!({ "rope_scaling": linear })).unwrap().rope;
    assert_eq!(expected.scaling, RopeScaling::Linear { factor: 4.0 });
    let default = json!({ "rope_type": "default", "rope_theta": 10000.0 });
    assert_eq!(beside(default).unwrap(), expected);
    assert_eq!(beside(linear.clone()).unwrap(), expected);
    assert_eq!(beside(json!({})).unwrap(), expected);
    // Of another base or another scaling one of them would be ignored.
    for other in [
        json!({ "rope_type": "default", "rope_theta": 5e5 }),
        json!({ "rope_type": "linear", "factor": 2.0 }),
    ] {
        let error = beside(other).unwrap_err();
        assert!(matches!(error, Error::Contradiction { key: "rope_scaling", .. }), "{error}");
    }
    let yarn = read(json!({ "rope_scaling": { "rope_type": "yarn", "factor": 2.0 } })).unwrap();
    let RopeScaling::Yarn { original_max_position_embeddings: original, .. } = yarn.rope.scaling
    else {
        panic!("{:?}", yarn.rope)
    };
    assert_eq!((original, yarn.max_position_embeddings), (2048, 4096));
}

#[test]
fn keys_that_contradict_each_other_are_named() {
    let two = [
        (
            json!({ "rope_theta": 1e4, "rope_parameters": { "rope_theta": 5e5 } }),
            "rope_theta = 10000 contradicts the one among the rope's parameters = 500000",
        ),
        (
            json!({ "rope_scaling": { "type": "linear", "rope_type": "yarn", "factor": 2.0 } }),
            "rope_type = yarn contradicts type = linear",
        ),
        (
            json!({ "original_max_position_embeddings": 64, "rope_scaling": { "type": "yarn",
                "factor": 2.0, "original_max_position_embeddings": 32 } }),
            "original_max_position_embeddings = 64 contradicts",
        ),
        (json!({ "hidden_activation": "gelu" }), "hidden_activation = gelu contradicts hidden_act"),
    ];
    for (keys, part) in two {
        let error = read(keys).unwrap_err();
        assert!(matches!(error, Error::Contradiction { .. }), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_message_has_the_beginning_of_a_long_value() {
    let long = "a".repeat(100_000);
    for keys in [json!({ "hidden_act": long }), json!({ "vocab_size": long })] {
        let text = read(keys).unwrap_err().to_string();
        assert!(text.len() < 400 && text.contains("aaa"), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_in_words_of_the_file() {
    for (text, said) in [
        ("[]", "it is a list, but must be an object"),
        (r#" ["llama"]"#, "it is a list, but must be an object"),
        ("7", "expected an object at line 1"),
        (
            r#"{"model_type": "llama", "vocab_size": "9"}"#,
            "expected a whole number of 0 or more at",
        ),
        (
            r#"{"model_type": "llama", "rms_norm_eps": "9"}"#,
            "expected a number at line 1 column 43",
        ),
        (r#"{"model_type": "llama", "rope_scaling": 1}"#, "expected an object at"),
        (r#"{"model_type": "llama", "layer_types": 1}"#, "expected a list at"),
        (r#"{"model_type": "llama", "eos_token_id": "9"}"#, "eos_token_id must be a whole number"),
    ] {
        let error = ModelConfig::from_json(text).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("struct"), "{text}: {error}");
    }
}
