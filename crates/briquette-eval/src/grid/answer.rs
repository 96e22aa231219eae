use serde::{Deserialize, Serialize};

use crate::{cache_bytes::CacheBytes, grid::Entry, tasks::needle::NeedlePrompt};

/// When the question comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Question {
    /// In the prompt: the cache is compressed knowing what is asked.
    Before,
    /// After the context was compressed, as a second prompt: the harder case, and the one of a long
    /// conversation.
    After,
}

/// Answer of a model to one prompt under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text.
    pub budget: String,
    /// When the question came, before or after compression.
    pub question: Question,
    /// Tokens of the prompt and its answer.
    pub length: usize,
    /// Depth of the needle in percent.
    pub depth: u32,
    /// Needles in the haystack.
    pub needles: usize,
    /// Number of the sample.
    pub sample: usize,
    /// The word asked for.
    pub word: String,
    /// The number hidden under it.
    pub expected: String,
    /// The text that the model generated.
    pub answer: String,
    /// Whether every token is right.
    pub exact: bool,
    /// Right tokens, each at its place.
    pub right: usize,
    /// Tokens of the number.
    pub tokens: usize,
    /// Bytes of cache held after the answer, of this row of the batch, with the room for tokens to
    /// come.
    pub bytes_held: usize,
    /// Those of them that are free; `None` in journals of older versions, which do not tell.
    #[serde(default)]
    pub bytes_spare: Option<usize>,
    /// Bytes that a full cache would hold then.
    pub bytes_full: usize,
}

impl Answer {
    pub(super) fn new(
        entry: &Entry,
        question: Question,
        prompt: &NeedlePrompt,
        tokens: &[u32],
        text: String,
        cache: CacheBytes,
    ) -> Self {
        let place = prompt.place;
        let right = prompt.right(tokens);
        Self {
            policy: entry.label.clone(),
            budget: entry.budget(),
            question,
            length: place.length,
            depth: place.depth,
            needles: place.needles,
            sample: place.sample,
            word: prompt.word.clone(),
            expected: prompt.number.clone(),
            answer: text,
            exact: right == prompt.answer.len(),
            right,
            tokens: prompt.answer.len(),
            bytes_held: cache.bytes,
            bytes_spare: cache.spare,
            bytes_full: cache.full,
        }
    }

    /// The same answer for the question in the prompt: of a cache that keeps everything it is the
    /// same.
    pub(crate) fn asked_before(&self) -> Self {
        Self { question: Question::Before, ..self.clone() }
    }
}
