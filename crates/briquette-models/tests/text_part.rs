//! Models that see more than text, of which the text part is read: their keys, and the names of
//! their tensors.

mod common;

use std::{collections::BTreeMap, fs};

use briquette_models::{Architecture, Error, Model, ModelConfig};
use burn::tensor::DType;
use common::{assert_invalid, assert_unsupported, device, fixtures, logits};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

const GEMMA: &str = "gemma3-multimodal";
const LLAMA: &str = "llama4";
const PROMPT: [u32; 5] = [5, 17, 90, 3, 41];

fn json_of(name: &str) -> Value {
    let text = fs::read_to_string(fixtures().join(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn read(config: &Value) -> Result<ModelConfig, Error> {
    ModelConfig::from_json(&config.to_string())
}

/// The configuration of Llama 4 as it is published, around that of the text part.
fn around_llama(keys: Value) -> Value {
    let mut config =
        json!({ "model_type": "llama4", "text_config": json_of(LLAMA), "vision_config": {} });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    config
}

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(name: &str) -> Tensors {
    let bytes = fs::read(fixtures().join(name).join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let own = |view: TensorView| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    file.tensors().into_iter().map(|(name, view)| (name, own(view))).collect()
}

fn load(config: &Value, tensors: &Tensors) -> Result<Model, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    Model::load(dir.path(), &device(), DType::F32)
}

fn renamed(tensors: Tensors, name: impl Fn(&str) -> String) -> Tensors {
    tensors.into_iter().map(|(old, tensor)| (name(&old), tensor)).collect()
}

/// A tensor that no part of a model of text takes.
fn another() -> (Dtype, Vec<usize>, Vec<u8>) {
    (Dtype::F32, vec![1], vec![0; 4])
}

#[test]
fn both_kinds_of_names_are_read_and_other_parts_left_out() {
    let text = Model::load(fixtures().join(LLAMA), &device(), DType::F32).unwrap();
    let expected = logits(&text, &PROMPT);
    let config = around_llama(json!({}));
    let below = renamed(tensors(LLAMA), |name| format!("language_model.{name}"));
    let beside = renamed(tensors(LLAMA), |name| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.into(),
    });
    for (mut tensors, first) in [(below, ""), (beside, "model.")] {
        for name in ["vision_model.class_embedding", "multi_modal_projector.linear_1.weight"] {
            tensors.insert(format!("{first}{name}"), another());
        }
        let model = load(&config, &tensors).unwrap();
        assert_eq!(logits(&model, &PROMPT), expected);
        tensors.insert(format!("{first}audio_tower.weight"), another());
        let error = load(&config, &tensors).unwrap_err();
        assert!(
            matches!(&error, Error::ExtraTensor { tensor, count: 1, .. }
                if *tensor == format!("{first}audio_tower.weight")),
            "{error}"
        );
    }
    // A model of text has no other part.
    let mut alone = tensors(LLAMA);
    alone.insert("vision_model.class_embedding".into(), another());
    let error = load(&json_of(LLAMA), &alone).unwrap_err();
    assert!(matches!(error, Error::ExtraTensor { .. }), "{error}");
}

#[test]
fn newer_names_of_gemma_are_read() {
    let config = json_of(GEMMA);
    let old = Model::load(fixtures().join(GEMMA), &device(), DType::F32).unwrap();
    let newer = renamed(tensors(GEMMA), |name| match name.strip_prefix("language_model.model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => format!("model.{name}"),
    });
    let newer = load(&config, &newer).unwrap();
    assert_eq!(logits(&newer, &PROMPT), logits(&old, &PROMPT));
}

#[test]
fn keys_beside_the_text_part_go_before_its_own() {
    let text = read(&json_of(LLAMA)).unwrap();
    let plain = read(&around_llama(json!({}))).unwrap();
    assert_eq!(plain, ModelConfig { is_text_part: true, ..text });
    let beside = json!({ "eos_token_id": [7, 8], "bos_token_id": 6, "pad_token_id": null,
        "tie_word_embeddings": true });
    let config = read(&around_llama(beside)).unwrap();
    assert_eq!((config.eos_token_ids, config.bos_token_id), (vec![7, 8], Some(6)));
    assert!(config.tie_word_embeddings);
    let packed = json!({ "quantization_config": { "quant_method": "fp8" } });
    let error = read(&around_llama(packed)).unwrap_err();
    assert!(matches!(error, Error::QuantizedWeights { .. }), "{error}");
}

#[test]
fn a_text_part_without_keys_has_the_defaults_of_its_family() {
    let sparse = json!({ "model_type": "gemma3", "text_config": { "hidden_size": 2560,
        "rope_scaling": { "factor": 8.0, "rope_type": "linear" }, "sliding_window": 1024 } });
    let config = read(&sparse).unwrap();
    assert_eq!(config.architecture, Architecture::Gemma3);
    assert_eq!((config.hidden_size, config.num_hidden_layers), (2560, 26));
    assert_eq!((config.vocab_size, config.rope.theta), (262_208, 1e6));
    assert_eq!(config.window(0), Some(1024.into()));
}

#[test]
fn files_that_do_not_say_their_text_part_are_refused() {
    assert_invalid(read(&json!({ "model_type": "llama4" })), "text_config");
    assert_invalid(read(&json!({ "model_type": "gemma3", "text_config": null })), "text_config");
    let other = around_llama(json!({ "text_config": { "model_type": "llama" } }));
    let error = read(&other).unwrap_err();
    assert!(
        matches!(&error, Error::Contradiction { key: "model_type of text_config", found, .. }
            if found.contains("llama")),
        "{error}"
    );
    let error = read(&around_llama(json!({ "text_config": [] }))).unwrap_err();
    assert!(matches!(error, Error::Json { .. }), "{error}");
    let mut capped = json_of(GEMMA);
    capped["text_config"]["final_logit_softcapping"] = json!(30.0);
    assert_unsupported(read(&capped), "final_logit_softcapping");
    let mut wrong = json_of(GEMMA);
    wrong["text_config"]["num_attention_heads"] = json!("x");
    let error = read(&wrong).unwrap_err().to_string();
    assert!(error.contains("config.json, text_config"), "{error}");
}
