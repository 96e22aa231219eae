//! Budgets in tokens.

use super::Policy;
use crate::{CacheShape, Error, Result, budget::Budget, check::MOST_COLUMNS};

impl Policy {
    /// Number of columns that a layer may hold above its budget before it is compressed again.
    /// Where decoding does not compress, or the budget grows with it, the number of columns to make
    /// room for at a time.
    pub(crate) fn slack(&self) -> usize {
        const GROWTH: usize = 64;
        let slack = match (self.schedule.decode_every, self.budget) {
            (Some(every), Some(Budget::Ratio(_))) => every.max(GROWTH),
            (Some(every), _) => every,
            (None, _) => GROWTH,
        };
        slack.min(MOST_COLUMNS)
    }

    /// Returns the budget in tokens, one number per batch row, no more than there can be columns;
    /// `None` keeps everything. `bytes_of` returns the bytes of a layer for a number of entries and
    /// of columns.
    pub(crate) fn resolve(
        &self,
        shape: CacheShape,
        seen: &[usize],
        bytes_of: &dyn Fn(usize, usize) -> usize,
    ) -> Result<Option<Vec<usize>>> {
        Ok(match self.budget {
            None => None,
            Some(Budget::Tokens(tokens)) => Some(vec![tokens.min(MOST_COLUMNS); seen.len()]),
            Some(Budget::Ratio(ratio)) => {
                let least = self.protect.least().max(1);
                let kept = |&seen: &usize| ((seen as f64 * ratio) as usize).max(least);
                Some(seen.iter().map(kept).collect())
            }
            Some(budget @ Budget::Bytes(bytes)) => {
                let layer = usize::try_from(bytes).unwrap_or(usize::MAX) / shape.layers;
                let slack = self.slack();
                let needs = |tokens: usize| {
                    let columns = self.reducer().columns(tokens).saturating_add(slack);
                    bytes_of(tokens.saturating_add(slack), columns)
                };
                let chosen = usize::from(self.scores_choose());
                let least = self.protect.least().saturating_add(chosen).max(1);
                if needs(1) > layer {
                    let least = needs(least).saturating_mul(shape.layers);
                    return Err(Error::BytesTooFew { bytes, rows: seen.len(), least });
                }
                // The most tokens that fit: bytes grow with them.
                let (mut fits, mut too_many) = (1, layer.min(MOST_COLUMNS) + 1);
                while fits + 1 < too_many {
                    let middle = fits + (too_many - fits) / 2;
                    if needs(middle) <= layer { fits = middle } else { too_many = middle }
                }
                self.check_tokens(budget, fits)?;
                self.reducer().check_budget(Budget::Tokens(fits), self.protect)?;
                Some(vec![fits; seen.len()])
            }
        })
    }
}
