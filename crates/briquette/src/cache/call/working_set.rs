//! Entries that one call works on.

use std::cell::OnceCell;

use burn::tensor::{Int, Tensor};

use super::{capacity::CapacityPlan, update::StoreChange};
use crate::{
    Result,
    ops::{AttentionStatistics, Entries},
    store::Store,
};

/// Entries that a call works on: those held and those that have arrived.
pub(in crate::cache) struct WorkingSet {
    /// Whether the entries are not in the store yet. At the end of the call it takes them, or those
    /// that a compression keeps.
    pub(in crate::cache) beside_store: bool,
    /// The entries, if they are beside the store or have been read from it.
    pub(super) entries: Option<Entries>,
    /// The position of each entry, `[batch, kv_heads, columns]`, read from the store when first
    /// needed.
    pub(super) positions: OnceCell<Tensor<3, Int>>,
    pub(in crate::cache) statistics: AttentionStatistics,
    pub(in crate::cache) columns: usize,
    /// Whether some columns may be padding.
    pub(in crate::cache) padded: bool,
    /// Whether tokens may be out of order, with the newest last.
    pub(in crate::cache) unordered: bool,
}

/// Returns the last `most` columns of entries by position, or all if there are fewer. Entries that
/// tokens share are returned whole.
pub(in crate::cache) fn last_columns(entries: Entries, most: usize) -> Entries {
    let columns = entries.columns();
    if most >= columns || entries.clustering.is_some() {
        return entries;
    }
    columns_of(entries, columns - most, most)
}

/// Returns `length` columns of entries that tokens do not share.
pub(in crate::cache) fn columns_of(entries: Entries, start: usize, length: usize) -> Entries {
    Entries {
        keys: entries.keys.narrow(2, start, length),
        values: entries.values.narrow(2, start, length),
        positions: entries.positions.narrow(2, start, length),
        statistics: entries.statistics.map(|statistic| statistic.narrow(2, start, length)),
        clustering: None,
    }
}

impl WorkingSet {
    /// Returns the entries, read from the store when first needed.
    pub(in crate::cache) fn entries(
        &mut self,
        store: &dyn Store,
        held: &[usize],
    ) -> Result<&Entries> {
        let entries = match self.entries.take() {
            Some(entries) => entries,
            None => store.entries_at(self.positions(store))?.with_lengths(held),
        };
        Ok(self.entries.insert(entries))
    }

    /// The position of each entry, `[batch, kv_heads, columns]`, −1 at padding.
    pub(in crate::cache) fn positions(&self, store: &dyn Store) -> Tensor<3, Int> {
        self.positions.get_or_init(|| store.positions()).clone()
    }

    pub(in crate::cache) fn loose(&self) -> Option<&Entries> {
        self.entries.as_ref().filter(|_| self.beside_store)
    }

    pub(in crate::cache) fn change(
        mut self,
        store: &dyn Store,
        held: &[usize],
        plan: &CapacityPlan,
    ) -> Result<StoreChange> {
        if !self.beside_store {
            return Ok(StoreChange::Appended { statistics: Box::new(self.statistics) });
        }
        let capacity = plan.grown(self.columns);
        Ok(StoreChange::Replaced { entries: Box::new(self.counted(store, held)?), capacity })
    }

    /// The entries with their statistics.
    pub(in crate::cache) fn counted(
        &mut self,
        store: &dyn Store,
        held: &[usize],
    ) -> Result<Entries> {
        let statistics = self.statistics.clone();
        Ok(Entries { statistics, ..self.entries(store, held)?.clone() })
    }
}
