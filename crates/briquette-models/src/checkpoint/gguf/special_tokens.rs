use super::{file::Gguf, value::Value};
use crate::Result;

/// The name that tokenizers of SentencePiece have in a file.
pub(super) const SENTENCEPIECE: &str = "llama";

/// The type of tokens that are no text, of `llama_token_type` in llama.cpp.
pub(super) const CONTROL: i64 = 3;

/// The id of a special token. SentencePiece has some that a file need not say.
pub(super) fn special_id(file: &Gguf, name: &str) -> Result<Option<u64>> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let model = file.optional("tokenizer.ggml.model", "a text", Value::text)?;
    let usual = match name {
        _ if model != Some(SENTENCEPIECE) => None,
        "unknown" => Some(0),
        "bos" => Some(1),
        "eos" => Some(2),
        _ => None,
    };
    Ok(file.optional(&key, "a number", Value::unsigned)?.or(usual))
}

/// The tokens that chat templates write out, by the names they have there.
pub(crate) fn special_tokens(file: &Gguf) -> Result<Vec<(String, String)>> {
    let tokens = file.optional("tokenizer.ggml.tokens", "a list of texts", Value::texts)?;
    let mut special_tokens = Vec::new();
    for (name, key) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("sep_token", "seperator"),
        ("pad_token", "padding"),
        ("cls_token", "cls"),
        ("mask_token", "mask"),
    ] {
        let id = special_id(file, key)?;
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
    for name in ["eos", "eot", "eom"] {
        let id = special_id(file, name)?;
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
