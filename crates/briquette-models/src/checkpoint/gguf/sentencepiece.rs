use std::collections::HashSet;

use serde_json::{Map, Value as Json, json};

use super::{file::Gguf, special_tokens::special_id, tokenizer_parts::Parts, value::Value};
use crate::Result;

/// Spaces are written as this character.
const SPACE: &str = "▁";

/// Bytes of the longest token that merges make. SentencePiece has 16 characters as its limit; the
/// longest tokens are found before a text is cut.
const LONGEST: usize = 256;

/// Byte-pair encoding of characters, as SentencePiece's: the pair is merged whose token has the
/// highest score, and a character without a token is written as bytes.
pub(super) fn parts(
    file: &Gguf,
    tokens: &[String],
    vocabulary: Map<String, Json>,
) -> Result<Parts> {
    let unknown = special_id(file, "unknown")?.and_then(|id| usize::try_from(id).ok());
    let unknown = unknown.and_then(|id| tokens.get(id));
    let key = "tokenizer.ggml.add_space_prefix";
    let begins_with_space = file.optional(key, "true or false", Value::bool)?.unwrap_or(true);
    let escape = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let unescape = json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " });
    let (mut normalizers, mut decoders) = (
        vec![escape],
        vec![unescape, json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })],
    );
    if begins_with_space {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": SPACE }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(Parts {
        normalizer: json!({ "type": "Sequence", "normalizers": normalizers }),
        pre_tokenizer: Json::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        model: json!({
            "type": "BPE", "vocab": vocabulary, "merges": merges(file, tokens)?,
            "unk_token": unknown, "fuse_unk": true, "byte_fallback": true,
        }),
        begins: true,
    })
}

/// Every pair of tokens that makes a third one, in the order in which texts are merged: by the
/// score of what they make, and of pairs that make the same the one whose first is longest.
fn merges<'a>(file: &Gguf, tokens: &'a [String]) -> Result<Vec<[&'a str; 2]>> {
    let scores = file.optional("tokenizer.ggml.scores", "a list of floats", Value::floats)?;
    let none = vec![0.0; tokens.len()];
    let scores = scores.unwrap_or(&none);
    if scores.len() != tokens.len() {
        let (tokens, scores) = (tokens.len(), scores.len());
        return Err(file.damaged(format!("{tokens} tokens are named, and {scores} have a score")));
    }
    let known: HashSet<&str> = tokens.iter().map(String::as_str).collect();
    let mut merges = Vec::new();
    for (token, score) in tokens.iter().zip(scores).filter(|(token, _)| token.len() <= LONGEST) {
        let cuts = token.char_indices().rev().map(|(at, _)| token.split_at(at));
        let pairs = cuts.filter(|(one, other)| known.contains(one) && known.contains(other));
        // Of 0 there are two, which are one score.
        merges.extend(pairs.map(|(one, other)| (score + 0.0, [one, other])));
    }
    merges.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    Ok(merges.into_iter().map(|(_, pair)| pair).collect())
}
