use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Architecture, Result,
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

/// Keys that may stand beside the text part, where they go before its own, unless they are `null`.
const BESIDE: [&str; 4] = ["quantization_config", "bos_token_id", "eos_token_id", "pad_token_id"];

/// It goes before the one of the text part even so: `null` ties nothing.
const TIE: &str = "tie_word_embeddings";

/// Returns the keys of the text part of such a file, as a file of their own.
pub(super) fn keys_of(architecture: Architecture, text: &str, origin: &str) -> Result<String> {
    let Parts { text_config, whole } = parse(text, origin)?;
    let Some(mut own) = text_config else {
        return Err(invalid("text_config", "absent", "given for this model type"));
    };
    let stands = |(key, value): &(String, Value)| {
        key == TIE || BESIDE.contains(&key.as_str()) && !value.is_null()
    };
    own.extend(whole.into_iter().filter(stands));
    let expected = architecture.model_type();
    let found = own.entry("model_type").or_insert_with(|| expected.into());
    if found != expected {
        let found = found.to_string();
        return Err(contradiction("model_type of text_config", found, "model_type", expected));
    }
    // `transformers` does not look at the cap of Gemma 3 here, which published files do not have.
    let cap = own.get("final_logit_softcapping").filter(|cap| !cap.is_null());
    if let (Some(cap), Architecture::Gemma3) = (cap, architecture) {
        return Err(unsupported("final_logit_softcapping", cap, "null beside other parts"));
    }
    Ok(Value::from(own).to_string())
}
