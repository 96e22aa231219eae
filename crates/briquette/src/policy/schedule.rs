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
    /// Whether decoding only appends: entries that are written stay as they are until their page is dropped whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_only: Option<AppendOnly>,
}

/// Decoding that never rewrites an entry, for those who hold entries in pages: of every
/// [`decode_every`](Schedule::decode_every) tokens the best are appended and the others skipped, and where a head then holds
/// more than its budget whole pages are dropped.
///
/// - New tokens: the `keep` of them with the highest scores stay, those of
///   [`protect.recent`](crate::Policy::with_recent) among them whatever their scores. Skipped ones are never held beyond this
///   step.
/// - Pages: `page` entries behind one another, counted from the first a head holds. A page goes as a whole, that of the
///   lowest mean score first and of equal ones the newer; those with sinks, and the last while it is not full, stay. A head
///   ends at most a page less one below its budget.
///
/// A prompt is compressed as ever, and pages are counted anew after it. The reducer must only drop, and a store that packs
/// entries anew whenever some are dropped is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AppendOnly {
    /// Entries of a page.
    pub page: usize,
    /// How many of the tokens decoded since the last time are kept.
    pub keep: usize,
}

impl AppendOnly {
    /// What must be held of a head whatever the scores, with so many sinks: their pages, one that is not full, and what is
    /// new.
    pub(crate) fn least(self, sinks: usize) -> usize {
        sinks.next_multiple_of(self.page).saturating_add(self.page).saturating_add(self.keep)
    }
}

impl Schedule {
    /// Once, when the prompt is complete.
    pub fn prefill_only() -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: None, append_only: None }
    }

    /// When the prompt is complete and every `decoded` tokens after it.
    pub fn always(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: Some(decoded), append_only: None }
    }

    /// Every `decoded` tokens, the prompt kept whole until the first of them.
    pub fn decode_only(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: Some(decoded), append_only: None }
    }

    /// When the prompt is complete; of every `decoded` tokens after it the best `keep` are appended, and pages of `page`
    /// entries dropped whole.
    pub fn append_only(decoded: usize, keep: usize, page: usize) -> Self {
        Self { append_only: Some(AppendOnly { page, keep }), ..Self::always(decoded) }
    }

    /// Never.
    pub fn never() -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: None, append_only: None }
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
