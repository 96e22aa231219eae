use serde_json::{Value as Json, json};

use super::{file::Gguf, value::Value};
use crate::{Result, setting::unsupported};

/// Divisors of frequencies: those of Llama 3, and of LongRoPE for short and long texts.
const DIVISORS: &str = "rope_freqs.weight";
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

/// The tensors that are read with the configuration.
pub(super) const OF_ROPE: [&str; 3] = [DIVISORS, SHORT, LONG];

/// The keys of the rotary embedding. Where llama.cpp reads no base it takes 10 000, whatever the
/// family has elsewhere.
pub(super) fn rope(
    file: &Gguf,
    family: &str,
    context: u64,
    numbers: impl Fn(&str) -> Result<Option<Vec<f32>>>,
) -> Result<Json> {
    let key = |name: &str| format!("{family}.rope.{name}");
    let float = |name: &str| file.optional(&key(name), "a finite float", Value::float);
    let number = |name: &str| file.optional(&key(name), "a number", Value::unsigned);
    // Without a type a factor is linear, and 0 is none, as in llama.cpp; the second is its older
    // name.
    let kind = file.optional(&key("scaling.type"), "a text", Value::text)?.unwrap_or("linear");
    let factor = match kind {
        "linear" | "longrope" | "yarn" => float("scaling.factor")?.or(float("scale_linear")?),
        "none" => None,
        other => {
            return Err(unsupported("rope.scaling.type", other, "none, linear, longrope and yarn"));
        }
    };
    let factor = factor.filter(|factor| *factor != 0.0);
    let divided = |divisors: &[f32]| -> Vec<f64> {
        divisors.iter().map(|divisor| f64::from(*divisor) * factor.unwrap_or(1.0)).collect()
    };
    let longrope = |[short, long]: [&[f32]; 2], of_attention: f64, original: u64| {
        json!({
            "rope_type": "longrope",
            "short_factor": divided(short),
            "long_factor": divided(long),
            "attention_factor": of_attention,
            "original_max_position_embeddings": original,
        })
    };
    let of_attention = float("scaling.attn_factor")?.unwrap_or(1.0);
    // Said, because without it a family may have one.
    let (mut original, mut scaling) = (context, json!({ "rope_type": "default" }));
    if kind == "yarn" && OF_ROPE.iter().any(|name| file.tensors.contains_key(*name)) {
        let known = "none, linear and longrope where a tensor divides frequencies";
        return Err(unsupported("rope.scaling.type", kind, known));
    }
    if let (Some(short), Some(long)) = (numbers(SHORT)?, numbers(LONG)?) {
        original = number("scaling.original_context_length")?.unwrap_or(context);
        scaling = longrope([&short, &long], of_attention, original);
    } else if of_attention != 1.0 {
        return Err(unsupported("rope.scaling.attn_factor", of_attention, "1"));
    } else if let Some(divisors) = numbers(DIVISORS)? {
        // Llama 3.1's scaling, worked out: a divisor of each frequency, whatever the context.
        scaling = longrope([&divisors; 2], 1.0, context);
    } else if let (Some(factor), "yarn") = (factor, kind) {
        for (name, neutral, shown) in [
            ("rope.scaling.yarn_ext_factor", 1.0, "1"),
            ("rope.scaling.yarn_attn_factor", 1.0, "1"),
            ("rope.scaling.yarn_log_multiplier", 0.0, "0"),
        ] {
            let found = file.optional(&format!("{family}.{name}"), "a finite float", Value::float);
            if let Some(found) = found?.filter(|found| *found != neutral) {
                return Err(unsupported(name, found, shown));
            }
        }
        original = number("scaling.original_context_length")?.unwrap_or(context);
        // No key says that the ends of the ramp are no whole channels, as gpt-oss was trained:
        // llama.cpp has whole ones.
        scaling = json!({
            "rope_type": "yarn",
            "factor": factor,
            "truncate": true,
            "beta_fast": float("scaling.yarn_beta_fast")?,
            "beta_slow": float("scaling.yarn_beta_slow")?,
            "original_max_position_embeddings": original,
        });
    } else if let Some(factor) = factor {
        scaling = json!({ "rope_type": "linear", "factor": factor });
    }
    Ok(json!({
        "rope_theta": float("freq_base")?.unwrap_or(10_000.0),
        "original_max_position_embeddings": original,
        "rope_scaling": scaling,
    }))
}
