use serde_json::{Value as Json, json};

use super::{
    families::{Sizes, model_type, own_keys},
    file::Gguf,
    rope::rope,
    special_tokens::{end_tokens, special_id},
    value::Value,
};
use crate::{Result, setting::invalid};

/// The text of the `config.json` that the metadata stands for, from which architectures are read.
/// Factors of frequencies lie in tensors, which `numbers` reads.
pub(crate) fn config_json(
    file: &Gguf,
    numbers: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<String> {
    let family = file.required("general.architecture", "a text", Value::text)?;
    let model_type = model_type(file)?;
    let key = |name: &str| format!("{family}.{name}");
    let number = |name: &str| file.optional(&key(name), "a number", Value::unsigned);
    let needed = |name: &str| file.required(&key(name), "a number", Value::unsigned);
    let tensor = |name: &str| file.tensors.get(name);

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
    let layers = needed("block_count")?;
    // Phi-3 may rotate a part of the channels.
    if let (Some(rotated), Some(head_dim)) = (number("rope.dimension_count")?, head_dim)
        && rotated != head_dim
        && model_type != "phi3"
    {
        let must_be = format!("the channels of a head, {head_dim}");
        return Err(invalid("rope.dimension_count", rotated, must_be));
    }
    let mut config = json!({
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": needed("feed_forward_length")?,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "rms_norm_eps": file.required(&key("attention.layer_norm_rms_epsilon"), "a finite float", Value::float)?,
        "max_position_embeddings": needed("context_length")?,
        "sliding_window": number("attention.sliding_window")?.filter(|window| *window > 0),
        "use_sliding_window": true,
        "max_window_layers": 0,
        "tie_word_embeddings": tensor("output.weight").is_none(),
        "attention_bias": tensor("blk.0.attn_q.bias").is_some(),
        "blk.0.attn_output.bias": tensor("blk.0.attn_output.bias").is_some(),
        "mlp_bias": false,
        "bos_token_id": special_id(file, "bos")?,
        "eos_token_id": end_tokens(file)?,
        "pad_token_id": special_id(file, "padding")?,
    });
    let context = needed("context_length")?;
    let rope = rope(file, family, context, numbers)?;
    let own = own_keys(file, family, model_type, &Sizes { hidden, heads, head_dim, layers })?;
    for more in [rope, own] {
        if let (Some(config), Json::Object(more)) = (config.as_object_mut(), more) {
            config.extend(more);
        }
    }
    Ok(config.to_string())
}
