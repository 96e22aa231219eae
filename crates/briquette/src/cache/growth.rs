//! Entries that heads may keep at future tokens, under a budget that grows with the tokens seen.
//! They are computed ahead, so that a recorded step finds its own numbers on the device.

use crate::ops::EvictLimits;

/// Entries that each head of a layer may keep at consecutive decoded tokens. None of these tokens
/// makes a head evict more than one entry. Numbers of heads are per batch row and kv head, rows
/// first.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// Tokens seen per batch row before the first of these tokens.
    pub(super) seen: Vec<usize>,
    pub(super) steps: Vec<GrowthStep>,
    /// Entries that each head holds after the last of these tokens.
    pub(super) entries: Vec<usize>,
    /// Columns that a head needs for its tokens, where tokens share entries.
    pub(super) columns: usize,
    /// Limits of the evictions at these tokens; `None` if there are none.
    pub(super) limits: Option<EvictLimits>,
}

/// Numbers of heads at a decoded token.
#[derive(Clone, Debug)]
pub(super) struct GrowthStep {
    /// Entries that each head may keep.
    pub(super) kept: Vec<usize>,
    /// Whether the token takes a free slot of each head, so that no entry is evicted.
    pub(super) takes_free: Vec<bool>,
    /// Tokens that each head holds afterwards; an upper bound where tokens share entries.
    pub(super) held: Vec<usize>,
}

impl Growth {
    /// Returns the numbers at the token after `seen` tokens per row; `None` if they are not known.
    pub(super) fn step(&self, seen: &[usize]) -> Option<&GrowthStep> {
        self.steps.get(self.token(seen)?)
    }

    /// Number of tokens left after `seen` tokens per row; `None` if these numbers are of other
    /// tokens.
    pub(super) fn tokens_left(&self, seen: &[usize]) -> Option<usize> {
        self.steps.len().checked_sub(self.token(seen)?)
    }

    /// Whether there are no tokens, because the first would make a head evict more than one entry
    /// or cannot be taken in place.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Index of the token after `seen` tokens per row.
    fn token(&self, seen: &[usize]) -> Option<usize> {
        let mut rows = seen.iter().zip(&self.seen).map(|(seen, first)| seen.checked_sub(*first));
        let token = rows.next()??;
        rows.all(|row| row == Some(token)).then_some(token)
    }
}
