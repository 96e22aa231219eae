use serde_json::{Value as Json, json};

use super::{file::Gguf, value::Value};
use crate::{Error, Result, setting::unsupported};

/// The architectures that are read from GGUF files, with their names in a `config.json`.
const KNOWN: [(&str, &str); 8] = [
    ("llama", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3moe", "qwen3_moe"),
    ("phi3", "phi3"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3_text"),
    ("gpt-oss", "gpt_oss"),
];

/// Whether models of this `model_type` are read from GGUF files.
pub(crate) fn is_read(model_type: &str) -> bool {
    // These are Llamas there.
    let llama = matches!(model_type, "mistral" | "mixtral");
    llama || KNOWN.iter().any(|(_, known)| *known == model_type)
}

/// More experts are damaged.
const MOST_EXPERTS: u64 = 4096;

/// The `model_type` that a file stands for. Mixtral is a Llama that has experts.
pub(super) fn model_type(file: &Gguf) -> Result<&'static str> {
    let family = file.required("general.architecture", "a text", Value::text)?;
    let Some((_, model_type)) = KNOWN.iter().find(|(name, _)| *name == family) else {
        let known = KNOWN.map(|(name, _)| name).join(", ");
        return Err(Error::ModelType { found: family.into(), known });
    };
    match (*model_type, experts(file, family)?) {
        (other, 0) => Ok(other),
        ("llama", _) => Ok("mixtral"),
        (mixture @ ("qwen3_moe" | "gpt_oss"), _) => Ok(mixture),
        (_, experts) => Err(unsupported("expert_count", experts, "0 for this architecture")),
    }
}

/// Experts of a layer; 0 in a model that is no mixture.
pub(super) fn experts(file: &Gguf, family: &str) -> Result<u64> {
    let key = format!("{family}.expert_count");
    match file.optional(&key, "a number", Value::unsigned)?.unwrap_or(0) {
        found if found > MOST_EXPERTS => {
            Err(file.damaged(format!("{key} is {found}, but must be at most {MOST_EXPERTS}")))
        }
        found => Ok(found),
    }
}

/// Sizes that the keys of a family depend on.
pub(super) struct Sizes {
    pub(super) hidden: u64,
    pub(super) heads: u64,
    pub(super) head_dim: Option<u64>,
    pub(super) layers: u64,
}

/// The keys that a family adds to those of all. What a file does not say is what llama.cpp takes.
pub(super) fn own_keys(file: &Gguf, family: &str, model_type: &str, sizes: &Sizes) -> Result<Json> {
    let key = |name: &str| format!("{family}.{name}");
    let number = |name: &str| file.optional(&key(name), "a number", Value::unsigned);
    let float = |name: &str| file.optional(&key(name), "a finite float", Value::float);
    let needed = |name: &str| file.required(&key(name), "a number", Value::unsigned);
    Ok(match model_type {
        "mixtral" => json!({
            "num_local_experts": experts(file, family)?,
            "num_experts_per_tok": needed("expert_used_count")?,
        }),
        "qwen3_moe" => {
            let used = needed("expert_used_count")?;
            let shared = number("feed_forward_length")?.and_then(|all| all.checked_div(used));
            json!({
                "num_experts": experts(file, family)?,
                "num_experts_per_tok": used,
                "moe_intermediate_size": number("expert_feed_forward_length")?.or(shared),
                "norm_topk_prob": true,
            })
        }
        "phi3" => {
            let rotated = number("rope.dimension_count")?.zip(sizes.head_dim);
            let part = rotated.map(|(rotated, all)| rotated as f64 / all as f64);
            json!({ "partial_rotary_factor": part })
        }
        "gemma2" => json!({
            "query_pre_attn_scalar": queries(sizes, 46),
            "attn_logit_softcapping": float("attn_logit_softcapping")?.unwrap_or(50.0),
            "final_logit_softcapping": float("final_logit_softcapping")?.unwrap_or(30.0),
            "sliding_window": number("attention.sliding_window")?.unwrap_or(4096),
            "layer_types": layers(sizes, number("attention.sliding_window_pattern")?.unwrap_or(2)),
        }),
        "gemma3_text" => {
            let window = number("attention.sliding_window")?.filter(|window| *window > 0);
            let pattern = number("attention.sliding_window_pattern")?.unwrap_or(6);
            json!({
                "query_pre_attn_scalar": queries(sizes, 62),
                "final_logit_softcapping": float("final_logit_softcapping")?,
                "rope_local_base_freq": float("rope.freq_base_swa")?.unwrap_or(10_000.0),
                "layer_types": layers(sizes, if window.is_some() { pattern } else { 1 }),
            })
        }
        "gpt_oss" => json!({
            "num_local_experts": experts(file, family)?,
            "num_experts_per_tok": needed("expert_used_count")?,
            "intermediate_size": needed("expert_feed_forward_length")?,
            "sliding_window": needed("attention.sliding_window")?,
            "layer_types": layers(sizes, number("attention.sliding_window_pattern")?.unwrap_or(2)),
        }),
        _ => json!({}),
    })
}

/// The number whose root divides scores. No key says it: the largest model of a generation, which
/// is told by its layers, does not take the channels of a head.
fn queries(sizes: &Sizes, layers_of_the_largest: u64) -> Option<u64> {
    match sizes.layers == layers_of_the_largest {
        true => sizes.hidden.checked_div(sizes.heads),
        false => sizes.head_dim,
    }
}

/// The kind of each layer: of `pattern` of them the last sees the whole text; of 0 none does.
fn layers(sizes: &Sizes, pattern: u64) -> Vec<&'static str> {
    let full = |layer: u64| layer.checked_rem(pattern) == pattern.checked_sub(1) && pattern > 0;
    let kind = |layer| if full(layer) { "full_attention" } else { "sliding_attention" };
    (0..sizes.layers).map(kind).collect()
}
