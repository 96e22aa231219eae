use serde_json::{Map, Value as Json, json};

use super::{
    byte_pairs,
    file::Gguf,
    sentencepiece,
    special_tokens::{CONTROL, SENTENCEPIECE, special_id},
    tokenizer_parts::Parts,
    value::Value,
};
use crate::{Error, Result};

/// The text of the `tokenizer.json` that the metadata stands for.
pub(crate) fn tokenizer_json(file: &Gguf) -> Result<Vec<u8>> {
    let model = file.required("tokenizer.ggml.model", "a text", Value::text)?;
    let tokens = file.required("tokenizer.ggml.tokens", "a list of texts", Value::texts)?;
    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(other) = vocabulary.insert(token.clone(), id.into()) {
            return Err(file.damaged(format!("tokens {other} and {id} are both `{token}`")));
        }
    }
    let Parts { normalizer, pre_tokenizer, decoder, model, begins } = match model {
        "gpt2" => byte_pairs::parts(file, vocabulary)?,
        SENTENCEPIECE => sentencepiece::parts(file, tokens, vocabulary)?,
        other => {
            return Err(Error::Tokenizer(format!(
                "{}: the tokenizer is `{other}`, those read from GGUF files are gpt2 and llama: put the model's \
                 tokenizer.json into a folder with the file, and name the folder",
                file.path.display()
            )));
        }
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": added(file, tokens)?,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": begin(file, tokens, begins)?,
        "decoder": decoder,
        "model": model,
    })
    .to_string()
    .into_bytes())
}

/// The tokens that are found in a text before it is cut.
fn added(file: &Gguf, tokens: &[String]) -> Result<Vec<Json>> {
    let kinds = file.optional("tokenizer.ggml.token_type", "a list of numbers", Value::numbers)?;
    let kinds = kinds.unwrap_or_default();
    if !kinds.is_empty() && kinds.len() != tokens.len() {
        let (tokens, kinds) = (tokens.len(), kinds.len());
        return Err(file.damaged(format!("{tokens} tokens are named, and {kinds} have a type")));
    }
    // No key says it: llama.cpp goes by the name of the model.
    let name = file.optional("general.name", "a text", Value::text)?.unwrap_or_default();
    let name = name.to_ascii_lowercase();
    let takes_spaces = name.contains("phi-3") || name.contains("phi3");
    let added = tokens.iter().zip(kinds).enumerate();
    Ok(added
        .filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, (token, kind))| {
            let plain = ["<unk>", "<s>", "<|endoftext|>"].contains(&token.as_str());
            json!({
                "id": id, "content": token, "special": *kind != USER_DEFINED, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": takes_spaces && !plain,
            })
        })
        .collect())
}

/// The chat template in the metadata, if there is one.
pub(crate) fn chat_template(file: &Gguf) -> Result<Option<String>> {
    let text = file.optional("tokenizer.chat_template", "a text", Value::text)?;
    Ok(text.map(str::to_owned))
}

// The types of tokens, `llama_token_type` of llama.cpp.
const UNKNOWN: i64 = 2;
const USER_DEFINED: i64 = 4;

/// The token that a text begins with, where the file asks for one.
fn begin(file: &Gguf, tokens: &[String], otherwise: bool) -> Result<Option<Json>> {
    let asked = file.optional("tokenizer.ggml.add_bos_token", "true or false", Value::bool)?;
    let id = special_id(file, "bos")?;
    let Some(id) = id.filter(|_| asked.unwrap_or(otherwise)) else { return Ok(None) };
    let Some(token) = usize::try_from(id).ok().and_then(|id| tokens.get(id)) else {
        let count = tokens.len();
        return Err(file.damaged(format!("a text begins with token {id}, of {count}")));
    };
    let (special, text) = (
        json!({ "SpecialToken": { "id": token, "type_id": 0 } }),
        |id: &str| json!({ "Sequence": { "id": id, "type_id": 0 } }),
    );
    Ok(Some(json!({
        "type": "TemplateProcessing",
        "single": [special, text("A")],
        "pair": [special, text("A"), text("B")],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    })))
}
