//! One cache for many questions.

use super::KvCache;
use crate::{Result, check, prefix::PrefixError};

impl KvCache {
    /// Returns an independent copy of the cache, to continue it in another way.
    ///
    /// Nothing is copied at first: both caches share their tensors until one of them writes to
    /// them. A dense store is then copied whole, at the first token. Other stores hold what a
    /// compression left apart from newer tokens, and copy only the newer tokens.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Returns a cache of `rows` rows that each continue this one, for questions that are asked in
    /// one batch.
    ///
    /// Dense buffers, and pages without statistics, are shared until they are written to. Lists of
    /// entries, which are held row by row, are copied.
    ///
    /// # Errors
    /// [`Error::Prefix`](crate::Error::Prefix) if it does not hold one row,
    /// [`Error::PromptUnfinished`](crate::Error::PromptUnfinished),
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) for no rows, or
    /// [`Error::MemoryCeiling`](crate::Error::MemoryCeiling).
    pub fn fork_rows(&self, rows: usize) -> Result<Self> {
        check::count("rows", rows)?;
        if self.batch != Some(1) {
            return Err(PrefixError::Rows { rows: self.batch.unwrap_or(0) }.into());
        }
        let mut fork = self.clone();
        fork.select_rows(&vec![0; rows])?;
        Ok(fork)
    }
}
