use serde::{Deserialize, Serialize};

/// Times at which a cache is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
#[non_exhaustive]
pub struct Schedule {
    /// Compression while a prompt arrives.
    pub prefill: PrefillCompression,
    /// Number of decoded tokens from one compression to the next; if absent, decoding does not
    /// compress. Between two compressions the cache holds up to `decode_every` − 1 tokens above its
    /// budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_every: Option<usize>,
    /// Append-only decoding, if any: written entries stay as they are until their whole page is
    /// dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub append_only: Option<AppendOnly>,
}

/// Decoding that never rewrites an entry, for paged storage. Of every
/// [`decode_every`](Schedule::decode_every) tokens the best are appended and the others skipped. A
/// head that then holds more than its budget drops whole pages.
///
/// - New tokens: the `keep` tokens with the highest scores stay, among them those of
///   [`protect.recent`](crate::Policy::with_recent), whatever their scores. Skipped tokens are not
///   held beyond this step.
/// - Pages: `page` consecutive entries, counted from the first of a head. The page with the lowest
///   mean score is dropped first, and of equal ones the newer. Pages with sinks stay, and so does
///   the last page while it is not full. A head ends at most `page` − 1 entries below its budget.
///
/// A prompt is compressed as usual, and pages are counted anew after it. The reducer must only drop
/// entries. A store that packs entries again whenever some are dropped is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AppendOnly {
    /// Number of entries of a page.
    pub page: usize,
    /// Number of tokens kept of those decoded since the last compression.
    pub keep: usize,
}

impl AppendOnly {
    /// Minimum number of entries of a head with this many sinks: the pages of the sinks, one page
    /// that is not full, and the new tokens.
    pub(crate) fn least(self, sinks: usize) -> usize {
        sinks.next_multiple_of(self.page).saturating_add(self.page).saturating_add(self.keep)
    }
}

impl Schedule {
    /// Compresses once, when the prompt is complete.
    pub const fn prefill_only() -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: None, append_only: None }
    }

    /// Compresses when the prompt is complete and every `decoded` tokens after it.
    pub const fn always(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::AtEnd, decode_every: Some(decoded), append_only: None }
    }

    /// Compresses every `decoded` tokens; the prompt is kept whole until the first compression.
    pub const fn decode_only(decoded: usize) -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: Some(decoded), append_only: None }
    }

    /// Compresses when the prompt is complete; of every `decoded` tokens after it the best `keep`
    /// are appended, and pages of `page` entries are dropped whole.
    pub const fn append_only(decoded: usize, keep: usize, page: usize) -> Self {
        Self { append_only: Some(AppendOnly { page, keep }), ..Self::always(decoded) }
    }

    /// Sets the compression while a prompt arrives.
    pub const fn with_prefill(self, prefill: PrefillCompression) -> Self {
        Self { prefill, ..self }
    }

    /// Sets the number of decoded tokens from one compression to the next; `None` compresses in no
    /// decode step.
    pub const fn with_decode_every(self, decode_every: Option<usize>) -> Self {
        Self { decode_every, ..self }
    }

    /// Whether it ever compresses.
    pub fn compresses(&self) -> bool {
        self.prefill != PrefillCompression::Never || self.decode_every.is_some()
    }

    /// Never compresses.
    pub const fn never() -> Self {
        Self { prefill: PrefillCompression::Never, decode_every: None, append_only: None }
    }
}

/// Compression of a cache while a prompt arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PrefillCompression {
    /// No compression.
    Never,
    /// Compression when the last column has arrived. The queries of the prompt see the whole
    /// prompt, in chunks or in one.
    AtEnd,
    /// Compression when the last column of the first prompt has arrived; later prompts are kept
    /// whole, beyond the budget. For a text that is compressed once and asked many questions.
    FirstPrompt,
    /// Compression after every chunk: memory stays bounded by the budget and one chunk, and later
    /// chunks see only the entries kept of earlier ones.
    EveryChunk,
}
