//! Columns that are taken back.

use super::{KvCache, layer::LayerCache};
use crate::{Error, Policy, Result, check};

impl Policy {
    /// Whether decoded tokens change more of a layer than its entries.
    pub(super) fn observes_decoded(&self) -> bool {
        let observes = self.observes();
        let in_decoding = self.schedule().decode_every.is_some();
        observes.counts_queries()
            || in_decoding && (observes.window > 0 || observes.holds_queries())
    }
}

impl KvCache {
    /// Takes the last columns back, so that `columns` are left of those that the cache has
    /// [seen](Self::columns_seen), such as tokens of a draft that the model does not accept. Where
    /// rows have seen different numbers, `columns` are those of the row that has seen most.
    ///
    /// A policy that compresses decoded tokens goes back to its last compression, and one that
    /// [sums or looks at](Policy::needs_queries) the weights of decoded queries to the beginning of
    /// the last [draft](Self::begin_decode). Others go back to the last compression as well, and
    /// [`Policy::full`](Policy::full) to any column. A store that has packed tokens goes back to
    /// these.
    ///
    /// Where there are [recurrent layers](crate::CacheConfig::with_recurrent_layers) no column is
    /// taken back.
    ///
    /// The cache is then as if the columns had not come, except under a policy that compresses
    /// decoded tokens: what it has dropped for a draft stays dropped.
    ///
    /// # Errors
    /// [`Error::TruncateTooFar`] with the least number of columns;
    /// [`Error::InvalidParameter`] for no columns ([`reset`](Self::reset) does that) and for more
    /// than there are; [`Error::PromptUnfinished`]. The cache is then as it was.
    pub fn truncate(&mut self, columns: usize) -> Result<()> {
        check::count("columns", columns)?;
        self.check_complete()?;
        let seen = self.columns_seen().into_iter().max().unwrap_or(0);
        let Some(dropped) = seen.checked_sub(columns) else {
            return check::refuse("columns", columns, format!("at most the {seen} columns seen"));
        };
        if dropped == 0 {
            return Ok(());
        }
        let layers = self.layers.iter().enumerate();
        let least = layers.map(|(number, layer)| {
            seen - layer.reversible(self.policy_of(number).observes_decoded())
        });
        // A state is not told from which token what came.
        let least = if self.recurrent.is_empty() { least.max() } else { Some(seen) };
        if let Some(least) = least.filter(|&least| least > columns) {
            return Err(Error::TruncateTooFar { columns, least });
        }
        let layers: Vec<LayerCache> =
            self.layers.iter().map(|layer| layer.without(dropped)).collect();
        if let Some(rollback) = self.active_transaction.rollback() {
            rollback.remember_all(&self.layers);
        }
        self.layers = layers;
        Ok(())
    }
}
