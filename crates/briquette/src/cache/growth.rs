//! Entries that heads may keep at the tokens to come, where a budget grows with the tokens seen:
//! worked out ahead, so that a recorded step finds its own numbers on the device.

use crate::ops::EvictLimits;

/// Entries that each head of a layer may keep at consecutive decoded tokens, of which none makes a
/// head evict more than one. Numbers of heads are per batch row and kv head, rows first.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// Tokens seen per batch row before the first of them.
    pub(super) seen: Vec<usize>,
    pub(super) steps: Vec<GrowthStep>,
    /// Entries that each head holds behind the last of them.
    pub(super) entries: Vec<usize>,
    /// Columns that the tokens need, where these share entries.
    pub(super) columns: usize,
    /// The numbers that its evictions go by; `None` if there is no token.
    pub(super) limits: Option<EvictLimits>,
}

/// Numbers of heads at a decoded token.
#[derive(Clone, Debug)]
pub(super) struct GrowthStep {
    /// Entries that each may keep.
    pub(super) kept: Vec<usize>,
    /// Whether the token takes a free slot, so that no entry goes.
    pub(super) takes_free: Vec<bool>,
    /// Tokens that each holds afterwards; where these share entries as many as there may be.
    pub(super) held: Vec<usize>,
}

impl Growth {
    /// The numbers at the next token of rows that have seen so many; `None` if they are not known.
    pub(super) fn step(&self, seen: &[usize]) -> Option<&GrowthStep> {
        self.steps.get(self.token(seen)?)
    }

    /// Tokens that are left to rows that have seen so many; `None` if it is of other tokens.
    pub(super) fn tokens_left(&self, seen: &[usize]) -> Option<usize> {
        self.steps.len().checked_sub(self.token(seen)?)
    }

    /// Whether its first token makes a head evict more than one, or cannot be taken in place.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The number of the next token.
    fn token(&self, seen: &[usize]) -> Option<usize> {
        let mut rows = seen.iter().zip(&self.seen).map(|(seen, first)| seen.checked_sub(*first));
        let token = rows.next()??;
        rows.all(|row| row == Some(token)).then_some(token)
    }
}
