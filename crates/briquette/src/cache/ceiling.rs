//! The most bytes a cache may hold.

use super::{
    append::Step, compress::Due, context::Context, layer::LayerCache, place::Placed, room::Room,
};
use crate::{Error, Result};

/// Refuses a call that leaves the cache with more bytes than the ceiling; `held` are held before it.
pub(super) fn check(ceiling: Option<usize>, held: usize, needed: usize) -> Result<()> {
    match ceiling {
        Some(ceiling) if needed > ceiling => Err(Error::MemoryCeiling { ceiling, held, needed }),
        _ => Ok(()),
    }
}

impl LayerCache {
    /// Bytes that a call adds to the store, as far as that can be told before anything is computed.
    pub(super) fn added(
        &self,
        context: Context<'_>,
        placed: &Placed,
        step: &Step,
    ) -> Result<usize> {
        let store = step.store.as_ref();
        let room = Room::new(context, placed, store, self.window.size())?;
        let columns = placed.queries.positions.dims()[2];
        let (held, capacity) = (store.columns(), store.capacity());
        let needed = held.saturating_add(columns);
        let due = Due::of(context.policy, placed.arrival.phase);
        let budget = room.budget.as_ref().and_then(|budget| budget.iter().copied().max());
        let after = match budget {
            // What the call itself drops is no longer held behind it.
            Some(budget) if due.compress => needed.min(budget),
            _ if held > 0 && needed <= capacity => capacity,
            _ => room.grown(needed),
        };
        let bytes = |columns| store.bytes_of(columns, columns);
        Ok(bytes(after).saturating_sub(if capacity == 0 { 0 } else { bytes(capacity) }))
    }
}
