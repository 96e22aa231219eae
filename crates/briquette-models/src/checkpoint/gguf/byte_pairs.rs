use serde_json::{Map, Value as Json, json};

use super::{file::Gguf, tokenizer_parts::Parts, value::Value};
use crate::{Error, Result};

/// Byte-pair encoding of bytes, as GPT-2's.
pub(super) fn parts(file: &Gguf, vocabulary: Map<String, Json>) -> Result<Parts> {
    let Splitting { steps, composed, whole_words, begins } = splitting(file)?;
    let merges = file.required("tokenizer.ggml.merges", "a list of texts", Value::texts)?;
    Ok(Parts {
        normalizer: if composed { json!({ "type": "NFC" }) } else { Json::Null },
        pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": steps }),
        decoder: byte_level(false),
        model: json!({
            "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": whole_words,
        }),
        begins,
    })
}

fn byte_level(use_regex: bool) -> Json {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex,
    })
}

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

/// That of o200k: a part has one capital, or capitals alone, and the ending of a contraction.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The rules of the file's pre-tokenizer, by its name: those of `llama_vocab` in llama.cpp, as the
/// `tokenizer.json` of the models have them.
fn splitting(file: &Gguf) -> Result<Splitting> {
    let split = |regex: &str| {
        json!({
            "type": "Split", "pattern": { "Regex": regex }, "behavior": "Isolated", "invert": false,
        })
    };
    let plain = |steps| Splitting { steps, composed: false, whole_words: false, begins: false };
    // Files from before May 2024 do not say it.
    let name = file.optional("tokenizer.ggml.pre", "a text", Value::text)?;
    Ok(match name.unwrap_or("not there") {
        "gpt-2" => plain(vec![byte_level(true)]),
        // Each digit by itself, and the rest as GPT-2.
        "smollm" | "starcoder" => {
            plain(vec![json!({ "type": "Digits", "individual_digits": true }), byte_level(true)])
        }
        "llama-bpe" | "llama3" | "llama-v3" => Splitting {
            whole_words: true,
            begins: true,
            ..plain(vec![split(LLAMA3), byte_level(false)])
        },
        "qwen2" => Splitting { composed: true, ..plain(vec![split(QWEN2), byte_level(false)]) },
        "gpt-4o" => plain(vec![split(GPT_4O), byte_level(false)]),
        other => {
            return Err(Error::Tokenizer(format!(
                "{}: the pre-tokenizer (tokenizer.ggml.pre) is {other}, those read are gpt-2, smollm, starcoder, llama-bpe, qwen2 and gpt-4o: put \
                 the model's tokenizer.json into a folder with the file, and name the folder",
                file.path.display()
            )));
        }
    })
}
