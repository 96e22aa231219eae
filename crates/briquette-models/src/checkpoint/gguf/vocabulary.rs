use serde_json::{Map, Value as Json, json};

use super::{file::Gguf, value::Value};
use crate::{Error, Result};

/// The text of the `tokenizer.json` that the metadata stands for: byte-pair encoding of bytes, as
/// GPT-2's.
pub(crate) fn tokenizer_json(file: &Gguf) -> Result<Vec<u8>> {
    let model = file.required("tokenizer.ggml.model", "a text", Value::text)?;
    if model != "gpt2" {
        return Err(Error::Tokenizer(format!(
            "{}: the tokenizer is `{model}`, those read from GGUF files are gpt2: put the model's tokenizer.json into \
             a folder with the file, and name the folder",
            file.path.display()
        )));
    }
    let splitting = splitting(file)?;
    let tokens = file.required("tokenizer.ggml.tokens", "a list of texts", Value::texts)?;
    let merges = file.required("tokenizer.ggml.merges", "a list of texts", Value::texts)?;
    let kinds = file.optional("tokenizer.ggml.token_type", "a list of numbers", Value::numbers)?;
    if let Some(kinds) = kinds.filter(|kinds| kinds.len() != tokens.len()) {
        let (tokens, kinds) = (tokens.len(), kinds.len());
        return Err(file.damaged(format!("{tokens} tokens are named, and {kinds} have a type")));
    }

    let mut vocabulary = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if let Some(other) = vocabulary.insert(token.clone(), id.into()) {
            return Err(file.damaged(format!("tokens {other} and {id} are both `{token}`")));
        }
    }
    let kind = |id: usize| kinds.and_then(|kinds| kinds.get(id)).copied().unwrap_or(NORMAL);
    let added: Vec<Json> = tokens
        .iter()
        .enumerate()
        .filter(|(id, _)| matches!(kind(*id), UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "special": kind(id) != USER_DEFINED, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    });
    Ok(json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": splitting.composed.then(|| json!({ "type": "NFC" })),
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": splitting.steps },
        "post_processor": begin(file, tokens, splitting.begins)?,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "vocab": vocabulary, "merges": merges,
            "ignore_merges": splitting.whole_words,
        },
    })
    .to_string()
    .into_bytes())
}

/// The chat template in the metadata, if there is one.
pub(crate) fn chat_template(file: &Gguf) -> Result<Option<String>> {
    let text = file.optional("tokenizer.chat_template", "a text", Value::text)?;
    Ok(text.map(str::to_owned))
}

/// The tokens that chat templates write out, by the names they have there.
pub(crate) fn special_tokens(file: &Gguf) -> Result<Vec<(String, String)>> {
    let tokens = file.optional("tokenizer.ggml.tokens", "a list of texts", Value::texts)?;
    let mut special_tokens = Vec::new();
    for (name, key) in [
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("sep_token", "tokenizer.ggml.seperator_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
        ("cls_token", "tokenizer.ggml.cls_token_id"),
        ("mask_token", "tokenizer.ggml.mask_token_id"),
    ] {
        let id = file.optional(key, "a number", Value::unsigned)?;
        if let Some(token) = id.and_then(|id| tokens?.get(usize::try_from(id).ok()?)) {
            special_tokens.push((name.to_owned(), token.clone()));
        }
    }
    Ok(special_tokens)
}

/// The tokens that end an answer: those the metadata names, and of those that llama.cpp knows by
/// name the ones that the file types as control tokens. Many files name the end of a text alone,
/// where turns end with another token.
pub(crate) fn end_tokens(file: &Gguf) -> Result<Vec<u32>> {
    let mut ends = Vec::new();
    for name in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        let key = format!("tokenizer.ggml.{name}");
        let id = file.optional(&key, "a number", Value::unsigned)?;
        ends.extend(id.and_then(|id| u32::try_from(id).ok()).filter(|id| !ends.contains(id)));
    }
    let tokens = file.optional("tokenizer.ggml.tokens", "a list of texts", Value::texts)?;
    let kinds = file.optional("tokenizer.ggml.token_type", "a list of numbers", Value::numbers)?;
    let (Some(tokens), Some(kinds)) = (tokens, kinds) else { return Ok(ends) };
    let named: Vec<(u32, &str)> = (0..)
        .zip(tokens.iter().zip(kinds))
        .filter(|(_, (token, kind))| **kind == CONTROL && END_TOKENS.contains(&token.as_str()))
        .map(|(id, (token, _))| (id, token.as_str()))
        .collect();
    let has = |name: &str| named.iter().any(|(_, token)| *token == name);
    // Where calls of tools have ends of their own, `<|end|>` ends a part of an answer.
    let parts = (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    for (id, token) in named {
        let a_part = parts && token == "<|end|>";
        if !a_part && !ends.contains(&id) {
            ends.push(id);
        }
    }
    Ok(ends)
}

/// The names of tokens at which llama.cpp ends an answer: ends of turns and texts, and those that
/// stand between files.
const END_TOKENS: [&str; 33] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

// The types of tokens, `llama_token_type` of llama.cpp.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Rules by which a text is cut into parts, each of which is encoded by itself.
struct Splitting {
    steps: Vec<Json>,
    /// Whether characters are composed first.
    composed: bool,
    /// Whether a part that is a token stays one, whatever merges say.
    whole_words: bool,
    /// Whether a text begins with its token where the file does not say.
    begins: bool,
}

/// GPT-4's expression, with one to three digits to a part (Llama 3), or one (Qwen2).
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rules of the file's pre-tokenizer, by its name: those of `llama_vocab` in llama.cpp, as the
/// `tokenizer.json` of the models have them.
fn splitting(file: &Gguf) -> Result<Splitting> {
    let bytes = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": use_regex,
        })
    };
    let split = |regex: &str| {
        json!({
            "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false,
        })
    };
    let plain = |steps| Splitting { steps, composed: false, whole_words: false, begins: false };
    // Files from before May 2024 do not say it.
    let name = file.optional("tokenizer.ggml.pre", "a text", Value::text)?;
    Ok(match name.unwrap_or("not there") {
        "gpt-2" => plain(vec![bytes(true)]),
        // Each digit by itself, and the rest as GPT-2.
        "smollm" | "starcoder" => {
            plain(vec![json!({ "type": "Digits", "individual_digits": true }), bytes(true)])
        }
        "llama-bpe" | "llama3" | "llama-v3" => Splitting {
            whole_words: true,
            begins: true,
            ..plain(vec![split(LLAMA3), bytes(false)])
        },
        "qwen2" => Splitting { composed: true, ..plain(vec![split(QWEN2), bytes(false)]) },
        other => {
            return Err(Error::Tokenizer(format!(
                "{}: the pre-tokenizer (tokenizer.ggml.pre) is {other}, those read are gpt-2, smollm, starcoder, llama-bpe and qwen2: put \
                 the model's tokenizer.json into a folder with the file, and name the folder",
                file.path.display()
            )));
        }
    })
}

/// The token that a text begins with, where the file asks for one.
fn begin(file: &Gguf, tokens: &[String], otherwise: bool) -> Result<Option<Json>> {
    let asked = file.optional("tokenizer.ggml.add_bos_token", "true or false", Value::bool)?;
    let id = file.optional("tokenizer.ggml.bos_token_id", "a number", Value::unsigned)?;
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
