//! One cache for many questions.

use super::{KvCache, ceiling, kv_cache::measures_of, layer::LayerCache, progress::Progress};
use crate::{Policy, Result, check, prefix::PrefixError, view::Measure};

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
        self.check_complete()?;
        let layers = self.layers.iter().map(|layer| layer.of_rows(rows, &self.policy));
        let layers: Vec<LayerCache> = layers.collect::<Result<_>>()?;
        let fork = Self {
            measures: measures_of(&layers),
            layers,
            batch: Some(rows),
            positions: None,
            ..self.clone()
        };
        ceiling::check(self.config.memory_ceiling, self.bytes_held(), fork.bytes_held())?;
        Ok(fork)
    }
}

impl LayerCache {
    fn of_rows(&self, rows: usize, policy: &Policy) -> Result<Self> {
        let none = || PrefixError::Store { store: policy.store().name().to_owned() };
        let store = self.store.as_ref().map(|store| store.repeated(rows).ok_or_else(none));
        let seen = self.progress.seen().repeat(rows);
        let columns = self.progress.columns().repeat(rows);
        Ok(Self {
            progress: Progress::after(seen, columns, self.progress.decoded()),
            store: store.transpose()?,
            window: self.window.repeated(rows),
            log: self.log.repeated(rows),
            held: self.held.repeat(rows),
            measure: self.measure.as_ref().map(|Measure { of_rows, seen }| Measure {
                of_rows: of_rows.repeat(rows),
                seen: seen.repeat(rows),
            }),
            state: self.state.clone().map(|state| Box::new(state.repeat_dim(0, rows))),
            share: self.share.as_ref().map(|share| share.repeat(rows)),
            growth: None,
            local_queries: self.local_queries,
            // Forgotten when the last layer of a prompt has come.
            snapshot: None,
            second_pass: self.second_pass,
            fixed: self.fixed,
            mark: None,
        })
    }
}
