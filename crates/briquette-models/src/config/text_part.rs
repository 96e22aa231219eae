use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Architecture, ModelConfig, Result,
    config::keys::{Family, Keys},
    json::parse,
    setting::{contradiction, invalid, unsupported},
};

/// A `config.json` of a model that sees more than text.
#[derive(Deserialize)]
struct Parts {
    text_config: Option<Map<String, Value>>,
    #[serde(flatten)]
    whole: Map<String, Value>,
}

/// Keys that may stand beside the text part, where they go before its own.
const BESIDE: [&str; 5] = [
    "tie_word_embeddings",
    "quantization_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
];

/// Reads the text part of such a file.
pub(super) fn read(architecture: Architecture, text: &str, origin: &str) -> Result<ModelConfig> {
    let Parts { text_config, whole } = parse(text, origin)?;
    let Some(mut own) = text_config else {
        return Err(invalid("text_config", "absent", "given for this model type"));
    };
    let beside = whole.into_iter().filter(|(key, value)| {
        BESIDE.contains(&key.as_str()) && !value.is_null()
    });
    own.extend(beside);
    let expected = architecture.model_type();
    own.entry("model_type").or_insert_with(|| expected.into());
    let (text, origin) = (Value::from(own).to_string(), format!("{origin}, text_config"));
    let Family { model_type } = parse(&text, &origin)?;
    if model_type != expected {
        return Err(contradiction("model_type of text_config", model_type, "model_type", expected));
    }
    let config = architecture.read(&Keys::parse(&text, &origin)?)?;
    // `transformers` does not look at the cap of Gemma 3 here, which published files do not have.
    if let (Some(cap), Architecture::Gemma3) = (config.final_logit_softcapping, architecture) {
        return Err(unsupported("final_logit_softcapping", cap, "null beside other parts"));
    }
    Ok(ModelConfig { is_text_part: true, ..config })
}
