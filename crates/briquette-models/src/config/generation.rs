use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Result,
    config::keys::TokenIds,
    json::{parse, read_text},
    shown::shown,
};

/// The keys of a `generation_config.json` that matter here.
#[derive(Deserialize)]
pub(crate) struct GenerationKeys {
    pub(crate) eos_token_id: Option<TokenIds>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Keys of generation that change even the most likely text, each with the value that changes
/// nothing.
const OF_TEXT: [(&str, f64); 9] = [
    ("repetition_penalty", 1.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("guidance_scale", 1.0),
    ("suppress_tokens", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("bad_words_ids", 0.0),
];

impl GenerationKeys {
    /// Those of a folder that has such a file.
    pub(crate) fn of_folder(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("generation_config.json");
        let read = || parse(&read_text(&path)?, &path.display().to_string());
        path.exists().then(read).transpose()
    }

    /// What it asks for and a text has not by itself: `repetition_penalty = 1.1`.
    pub(crate) fn not_applied(&self) -> Vec<String> {
        let asks = |value: &Value, nothing: f64| match value {
            Value::Null => false,
            Value::Array(list) => !list.is_empty(),
            value => value.as_f64() != Some(nothing),
        };
        let of = |(key, nothing): (&str, f64)| {
            let value = self.others.get(key).filter(|value| asks(value, nothing))?;
            Some(format!("{key} = {}", shown(value.to_string())))
        };
        OF_TEXT.into_iter().filter_map(of).collect()
    }
}
