//! Attention that caches of the same prompt share.

use std::cell::RefCell;

use crate::{Result, ops::AttentionOutput, policy::PositionMode};

/// The attention of one layer, computed once for all caches that ask for the same.
#[derive(Debug, Default)]
pub(super) struct SharedAttention {
    known: RefCell<Vec<(Asked, AttentionOutput)>>,
}

/// A request for attention over queries, keys and values that all caches are given: an operation
/// that sums weights or encodes keys on the way may round in another way than one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) positions: PositionMode,
    pub(super) column_sums: bool,
    pub(super) column_squares: bool,
}

impl SharedAttention {
    /// The attention that was computed for the same request, else `compute`'s.
    pub(super) fn get_or_compute(
        &self,
        asked: Asked,
        compute: impl FnOnce() -> Result<AttentionOutput>,
    ) -> Result<AttentionOutput> {
        if let Some((_, output)) = self.known.borrow().iter().find(|(other, _)| *other == asked) {
            return Ok(output.clone());
        }
        let output = compute()?;
        self.known.borrow_mut().push((asked, output.clone()));
        Ok(output)
    }
}
