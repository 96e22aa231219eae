use serde::{Deserialize, Serialize};

/// When a cache compresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Schedule {
    /// While a prompt arrives.
    pub prefill: PrefillCompression,
    /// Every so many decoded tokens; never if absent. Between two compressions the cache holds up to that
    /// many tokens less one above its budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_every: Option<usize>,
}

impl Schedule {
    /// Once, when the prompt is complete.
    pub fn prefill_only() -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: None }
    }

    /// When the prompt is complete and every `decoded` tokens after it.
    pub fn always(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: Some(decoded) }
    }

    /// Every `decoded` tokens, the prompt kept whole until the first of them.
    pub fn decode_only(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: Some(decoded) }
    }

    /// Never.
    pub fn never() -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: None }
    }
}

/// When a cache compresses while a prompt arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PrefillCompression {
    /// Not at all.
    Never,
    /// When the last column has arrived. The prompt's queries see the whole prompt, in chunks or in one.
    AtEnd,
    /// When the last column of the first prompt has arrived; prompts behind it are kept whole, beyond the budget. For a text
    /// that is compressed once and asked many things.
    FirstPrompt,
    /// After every chunk: memory stays bounded by the budget and one chunk, and later chunks see only what
    /// earlier ones left.
    EveryChunk,
}
