//! Limits of tokenizers. They come with models: what a file asks for is bounded before it is
//! done.
//!
//! Normalizers write a text anew, one after the other, and each may write some times what it
//! reads: three replacements of a letter by a thousand make a gigabyte of one. How much the steps
//! can write is worked out from the file; a text that could grow too much by that is counted step
//! by step.

use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, Tokenizer, normalizers::NormalizerWrapper};

/// Bytes that any text may be normalized to.
const NORMALIZED: usize = 64 << 20;
/// Bytes for each byte of the text beside that.
const NORMALIZED_PER_BYTE: usize = 32;
/// Times that a text may grow where it is cut, or written from its tokens.
const UNCOUNTED: usize = 64;
/// Tokens around a text.
const AROUND: usize = 1024;

/// The most that a step writes: bytes for each byte, and for each part of a text.
#[derive(Clone, Copy, Debug)]
struct Growth {
    factor: usize,
    plus: usize,
}

impl Growth {
    const fn times(factor: usize) -> Self {
        Self { factor, plus: 0 }
    }

    fn of(self, bytes: usize, parts: usize) -> usize {
        bytes.saturating_mul(self.factor).saturating_add(parts.saturating_mul(self.plus))
    }
}

/// The most that the normalizers of a tokenizer write.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    normalizers: Vec<Growth>,
}

impl Limits {
    /// Checks the parts of `tokenizer.json` that can write more than they read, and those that the
    /// library trusts.
    pub(crate) fn of(file: &Value) -> Result<Self, String> {
        let normalizers: Vec<Growth> =
            steps(file.get("normalizer"), "normalizers").into_iter().map(normalizer).collect();
        let limits = Self { normalizers };
        let added = file.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
        limits.check_tokens(added.filter_map(|token| token.get("content")?.as_str()))?;
        let cut = steps(file.get("pre_tokenizer"), "pretokenizers").into_iter().map(pre_tokenizer);
        bounded("pre_tokenizer", cut)?;
        bounded("decoder", steps(file.get("decoder"), "decoders").into_iter().map(decoder))?;
        let empty = |step: &&Value| step.pointer("/pattern/String").is_some_and(|it| it == "");
        if steps(file.get("normalizer"), "normalizers").iter().any(empty) {
            return Err("its normalizer replaces an empty text".to_owned());
        }
        for processor in steps(file.get("post_processor"), "processors") {
            post_processor(processor)?;
        }
        Ok(limits)
    }

    /// Refuses added tokens that normalizers would make too long: the library normalizes them when
    /// it reads them.
    pub(crate) fn check_tokens<'a>(
        &self,
        tokens: impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        let bytes =
            tokens.map(|token| self.most_written(token.len())).fold(0, usize::saturating_add);
        if bytes > NORMALIZED {
            return Err(format!(
                "its normalizers can make {bytes} bytes of its added tokens, at most {NORMALIZED} are taken"
            ));
        }
        Ok(())
    }

    /// The most that is written of a text, each part of which may be a part by itself.
    fn most_written(&self, bytes: usize) -> usize {
        let parts = bytes.saturating_add(1);
        self.normalizers.iter().fold(bytes, |bytes, growth| growth.of(bytes, parts))
    }

    /// Refuses a text that normalizers would make too long.
    pub(crate) fn check(&self, text: &str, tokenizer: &Tokenizer) -> Result<(), String> {
        let most = text.len().saturating_mul(NORMALIZED_PER_BYTE).saturating_add(NORMALIZED);
        if self.most_written(text.len()) <= most {
            return Ok(());
        }
        // Added tokens cut a text into parts, each of which is normalized by itself.
        let added = tokenizer.get_added_tokens_decoder().into_values();
        let cuts = added
            .filter(|token| !token.content.is_empty())
            .map(|token| text.matches(token.content.as_str()).count());
        let parts = cuts.fold(1, usize::saturating_add);
        let mut written = NormalizedString::from(text);
        // What is put before parts that this text, taken as one, does not have.
        let mut more = 0_usize;
        let steps = tokenizer.get_normalizer().map(flat).unwrap_or_default();
        for (growth, step) in self.normalizers.iter().zip(steps) {
            let bytes = growth.of(written.get().len().saturating_add(more), parts);
            if bytes > most {
                return Err(format!(
                    "the normalizers of the tokenizer can make {bytes} bytes of a text of {}, at most {most} are taken",
                    text.len()
                ));
            }
            more = growth.of(more, parts.saturating_sub(1));
            step.normalize(&mut written).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// The steps of a part of the file: those of sequences in it, in their order.
fn steps<'a>(part: Option<&'a Value>, list: &str) -> Vec<&'a Value> {
    let Some(part) = part.filter(|part| !part.is_null()) else { return Vec::new() };
    match part.get(list).and_then(Value::as_array) {
        Some(parts) => parts.iter().flat_map(|part| steps(Some(part), list)).collect(),
        None => vec![part],
    }
}

/// The same steps as the library has read them.
fn flat(normalizer: &NormalizerWrapper) -> Vec<&NormalizerWrapper> {
    match normalizer {
        NormalizerWrapper::Sequence(parts) => parts.as_ref().iter().flat_map(flat).collect(),
        other => vec![other],
    }
}

fn kind(step: &Value) -> &str {
    step.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn text<'a>(step: &'a Value, key: &str) -> Option<&'a str> {
    step.get(key).and_then(Value::as_str)
}

/// Steps are known by their keys first: older files have no `type`.
fn normalizer(step: &Value) -> Growth {
    if let Some(before) = text(step, "prepend") {
        return Growth { factor: 1, plus: before.len() };
    }
    if step.get("pattern").is_some() {
        return replacement(step);
    }
    if let Some(map) = text(step, "precompiled_charsmap") {
        return Growth::times(longest_entry(map).max(1));
    }
    match kind(step) {
        "Strip" | "StripAccents" | "Nmt" => Growth::times(1),
        "ByteLevel" | "Lowercase" => Growth::times(2),
        "NFC" | "NFD" => Growth::times(4),
        // The longest of Unicode has 11 bytes for one; Bert puts spaces around characters.
        _ => Growth::times(12),
    }
}

/// A text that stands for each match of a pattern. An expression may match between any two bytes.
fn replacement(step: &Value) -> Growth {
    let content = text(step, "content").unwrap_or_default().len();
    let pattern = step.pointer("/pattern/String").and_then(Value::as_str).unwrap_or_default();
    match content.checked_div(pattern.len()) {
        Some(times) => Growth::times(times.saturating_add(1)),
        None => Growth { factor: content.saturating_add(1), plus: content },
    }
}

/// Bytes of the longest text that a map of SentencePiece has: a trie behind its length, then texts
/// that end with zero, in base 64.
fn longest_entry(map: &str) -> usize {
    let mut bytes = Vec::new();
    let (mut bits, mut held) = (0_u32, 0_u32);
    for char in map.bytes() {
        let digit = match char {
            b'A'..=b'Z' => char.wrapping_sub(b'A'),
            b'a'..=b'z' => char.wrapping_sub(b'a').wrapping_add(26),
            b'0'..=b'9' => char.wrapping_sub(b'0').wrapping_add(52),
            b'+' => 62,
            b'/' => 63,
            _ => break,
        };
        bits = bits << 6 & 0xff_ffff | u32::from(digit);
        held = held.wrapping_add(6);
        if held >= 8 {
            held = held.wrapping_sub(8);
            bytes.extend((bits >> held).to_le_bytes().first());
        }
    }
    let length = bytes.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length));
    let texts = usize::try_from(length).unwrap_or(usize::MAX).saturating_add(4);
    let texts = bytes.get(texts..).unwrap_or(&bytes);
    texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0)
}

fn pre_tokenizer(step: &Value) -> Growth {
    match kind(step) {
        "BertPreTokenizer" | "CharDelimiterSplit" | "Digits" | "FixedLength" | "Punctuation"
        | "Split" | "UnicodeScripts" | "Whitespace" | "WhitespaceSplit" => Growth::times(1),
        "ByteLevel" => Growth::times(2),
        // A space becomes a character of up to four bytes.
        _ => Growth::times(4),
    }
}

fn decoder(step: &Value) -> Growth {
    match kind(step) {
        _ if step.get("pattern").is_some() => replacement(step),
        "ByteLevel" => Growth::times(3),
        _ => Growth::times(1),
    }
}

/// Refuses steps that write many times what they read.
fn bounded(part: &str, steps: impl Iterator<Item = Growth>) -> Result<(), String> {
    let times = steps.fold(1_usize, |times, growth| times.saturating_mul(growth.of(1, 1)));
    if times > UNCOUNTED {
        return Err(format!(
            "its {part} can write {times} times what it reads, at most {UNCOUNTED} are taken"
        ));
    }
    Ok(())
}

/// A template of a text with tokens around it. The library indexes what it names.
fn post_processor(step: &Value) -> Result<(), String> {
    let Some(pieces) = step.get("single").and_then(Value::as_array) else { return Ok(()) };
    let (mut texts, mut around) = (0_usize, 0_usize);
    for piece in pieces {
        if let Some(sequence) = piece.pointer("/Sequence/id").and_then(Value::as_str) {
            if sequence != "A" {
                return Err(format!(
                    "its post_processor has text {sequence} in the form for one text, which is A"
                ));
            }
            texts = texts.saturating_add(1);
        }
        let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) else {
            continue;
        };
        let token = step.get("special_tokens").and_then(|tokens| tokens.get(name));
        let count = |key: &str| token.and_then(|it| it.get(key)?.as_array()).map(Vec::len);
        let (Some(ids), Some(tokens)) = (count("ids"), count("tokens")) else {
            return Err(format!(
                "its post_processor writes `{name}`, which its special_tokens do not have"
            ));
        };
        if ids != tokens {
            return Err(format!(
                "its post_processor has {ids} ids and {tokens} tokens for `{name}`"
            ));
        }
        around = around.saturating_add(ids);
    }
    if texts != 1 {
        return Err(format!("its post_processor writes a text {texts} times, not once"));
    }
    if around > AROUND {
        return Err(format!(
            "its post_processor writes {around} tokens around a text, at most {AROUND} are taken"
        ));
    }
    Ok(())
}
