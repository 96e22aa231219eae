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
    /// The least bytes by which a call makes the store grow, before anything is computed. What a compression leaves is not
    /// known then, and is nothing here.
    pub(super) fn added(
        &self,
        context: Context<'_>,
        placed: &Placed,
        step: &Step,
    ) -> Result<usize> {
        let store = step.store.as_ref();
        let room = Room::new(context, placed, store, self.window.size())?;
        if room.budget.is_some() && Due::of(context.policy, placed.arrival.phase).compress {
            return Ok(0);
        }
        let needed = store.columns().saturating_add(placed.queries.positions.dims()[2]);
        let capacity = match placed.arrival.padded {
            // Room that is there may be kept where padding makes way.
            true => needed,
            false if store.columns() > 0 && needed <= store.capacity() => store.capacity(),
            false => room.grown(needed),
        };
        Ok(store.least_bytes(capacity).saturating_sub(store.bytes()))
    }
}
