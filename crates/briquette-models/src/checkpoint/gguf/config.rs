use serde_json::{Value as Json, json};

use super::{
    file::Gguf,
    special_tokens::{end_tokens, special_id},
    value::Value,
};
use crate::{
    Error, Result,
    setting::{invalid, unsupported},
};

/// The architectures that are read from GGUF files.
const KNOWN: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// The text of the `config.json` that the metadata stands for, from which architectures are read.
/// Frequencies of Llama 3 lie in a tensor, which `numbers` reads.
pub(crate) fn config_json(
    file: &Gguf,
    numbers: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<String> {
    let family = file.required("general.architecture", "a text", Value::text)?;
    if !KNOWN.contains(&family) {
        return Err(Error::ModelType { found: family.into(), known: KNOWN.join(", ") });
    }
    let key = |name: &str| format!("{family}.{name}");
    let number = |name: &str| file.optional(&key(name), "a number", Value::unsigned);
    let needed = |name: &str| file.required(&key(name), "a number", Value::unsigned);
    let float = |name: &str| file.optional(&key(name), "a finite float", Value::float);
    let tensor = |name: &str| file.tensors.get(name);

    if let Some(experts) = number("expert_count")?.filter(|experts| *experts > 0) {
        return Err(unsupported("expert_count", experts, "none in GGUF files"));
    }
    let embedding = tensor("token_embd.weight");
    let rows = embedding.and_then(|place| place.shape.first());
    let Some(&vocab_size) = rows else {
        return Err(file.damaged("tensor `token_embd.weight` is not there"));
    };
    if let Some(tokens) = file.optional("tokenizer.ggml.tokens", "a list of texts", Value::texts)?
        && tokens.len() != vocab_size
    {
        let count = tokens.len();
        return Err(file.damaged(format!("{count} tokens are named, {vocab_size} embedded")));
    }

    // More than these are damaged, and would be made room for before a weight is missed.
    for (name, most) in [("block_count", file.tensors.len() as u64), ("context_length", 1 << 24)] {
        let found = needed(name)?;
        if found > most {
            let message = format!("{} is {found}, but must be at most {most}", key(name));
            return Err(file.damaged(message));
        }
    }
    let heads = needed("attention.head_count")?;
    let hidden = needed("embedding_length")?;
    let head_dim = number("attention.key_length")?;
    if let (Some(keys), Some(values)) = (head_dim, number("attention.value_length")?)
        && keys != values
    {
        return Err(invalid("attention.value_length", values, format!("key_length, {keys}")));
    }
    let head_dim = head_dim.or(hidden.checked_div(heads));
    if let (Some(rotated), Some(head_dim)) = (number("rope.dimension_count")?, head_dim)
        && rotated != head_dim
    {
        let must_be = format!("the channels of a head, {head_dim}");
        return Err(invalid("rope.dimension_count", rotated, must_be));
    }
    let mut config = json!({
        "model_type": family,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": needed("feed_forward_length")?,
        "num_hidden_layers": needed("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "rms_norm_eps": file.required(&key("attention.layer_norm_rms_epsilon"), "a finite float", Value::float)?,
        "rope_theta": float("rope.freq_base")?,
        "max_position_embeddings": needed("context_length")?,
        "sliding_window": number("attention.sliding_window")?.filter(|window| *window > 0),
        "use_sliding_window": true,
        "max_window_layers": 0,
        "tie_word_embeddings": tensor("output.weight").is_none(),
        "attention_bias": tensor("blk.0.attn_q.bias").is_some(),
        "mlp_bias": false,
        "bos_token_id": special_id(file, "bos")?,
        "eos_token_id": end_tokens(file)?,
        "pad_token_id": special_id(file, "padding")?,
    });
    if let Some(factor) = float("rope.scaling.attn_factor")?.filter(|factor| *factor != 1.0) {
        return Err(unsupported("rope.scaling.attn_factor", factor, "1"));
    }
    // Without a type a factor is linear, and 0 is none, as in llama.cpp; the second is its older
    // name.
    let kind = file.optional(&key("rope.scaling.type"), "a text", Value::text)?;
    let factor = match kind.unwrap_or("linear") {
        "linear" => float("rope.scaling.factor")?.or(float("rope.scale_linear")?),
        "none" => None,
        other => return Err(unsupported("rope.scaling.type", other, "none and linear")),
    };
    let factor = factor.filter(|factor| *factor != 0.0);
    let context = needed("context_length")?;
    let scaling = match (numbers("rope_freqs.weight")?, factor) {
        // Llama 3.1's scaling, worked out: a divisor of each frequency, whatever the context.
        (Some(divisors), factor) => {
            let divided = |divisor: f32| f64::from(divisor) * factor.unwrap_or(1.0);
            let divisors: Vec<f64> = divisors.into_iter().map(divided).collect();
            json!({
                "rope_type": "longrope",
                "short_factor": divisors,
                "long_factor": divisors,
                "attention_factor": 1.0,
                "original_max_position_embeddings": context,
            })
        }
        (None, Some(factor)) => json!({ "rope_type": "linear", "factor": factor }),
        (None, None) => Json::Null,
    };
    if let Some(config) = config.as_object_mut() {
        config.insert("rope_scaling".into(), scaling);
    }
    Ok(config.to_string())
}
