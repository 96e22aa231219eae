//! The store of a layer, taken out for one call.

use super::working_set::last_columns;
use crate::{
    Result,
    cache::context::Context,
    columns::longest,
    store::{Store, build},
};

/// Lays the entries of a store out by position, without its free slots; returns whether it had any.
/// `held` are the tokens of each head.
pub(in crate::cache) fn drop_free_slots(store: &mut dyn Store, held: &[usize]) -> Result<bool> {
    if store.in_place().is_none_or(|slots| slots.slots_with_free().is_none()) {
        return Ok(false);
    }
    let entries = last_columns(store.entries()?, longest(held));
    let columns = entries.columns();
    store.replace(entries, held, columns)?;
    Ok(true)
}

/// Store of a layer during a call; the layer gets it back as it was if the call fails.
pub(in crate::cache) struct StoreGuard {
    pub(in crate::cache) store: Box<dyn Store>,
    pub(super) outgrown: Option<Box<dyn Store>>,
    /// The store before its entries were laid out by position.
    unordered: Option<Box<dyn Store>>,
    /// Columns that the store held before the call.
    pub(in crate::cache) columns: usize,
    /// Whether the store was made for this call.
    new: bool,
}

impl StoreGuard {
    /// Takes the store of a layer, or makes one.
    pub(in crate::cache) fn new(
        store: Option<Box<dyn Store>>,
        context: Context<'_>,
        batch: usize,
    ) -> Self {
        let build = || build(context.policy.store(), context.store_options(batch));
        let new = store.is_none();
        let store = store.unwrap_or_else(build);
        Self { columns: store.columns(), store, outgrown: None, unordered: None, new }
    }

    /// Lays the entries out by position if they are out of order, and drops free slots. `held` are
    /// the tokens of each head.
    pub(in crate::cache) fn order(&mut self, held: &[usize]) -> Result<()> {
        if self.store.in_place().is_some_and(|slots| slots.is_unordered()) {
            let mut before = self.store.clone();
            before.truncate(self.columns);
            self.unordered = Some(before);
        }
        if drop_free_slots(self.store.as_mut(), held)? {
            return Ok(());
        }
        match self.store.in_place() {
            Some(slots) => slots.order(),
            None => Ok(()),
        }
    }

    /// The store as it was before the call, if there was one.
    pub(in crate::cache) fn undone(self) -> Option<Box<dyn Store>> {
        let Self { mut store, outgrown, unordered, columns, new } = self;
        store.truncate(columns);
        (!new).then(|| unordered.or(outgrown).unwrap_or(store))
    }

    /// Returns a copy of the store as it was before the call, if there was one. If the store has
    /// grown since, the copy is the smaller store if `outgrown`, and otherwise shares the new room.
    pub(in crate::cache) fn before(&self, outgrown: bool) -> Option<Box<dyn Store>> {
        if self.new {
            return None;
        }
        if let Some(store) = &self.unordered {
            return Some(store.clone());
        }
        match &self.outgrown {
            Some(store) if outgrown => Some(store.clone()),
            _ => {
                let mut store = self.store.clone();
                store.truncate(self.columns);
                Some(store)
            }
        }
    }
}
