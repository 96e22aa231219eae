//! Maximum number of bytes that a cache may hold.

use super::{
    call::{
        capacity::CapacityPlan, compress::CompressionDue, input::LayerInput,
        store_guard::StoreGuard,
    },
    context::Context,
    layer::LayerCache,
};
use crate::{Error, Result};

/// Refuses a call that would leave the cache with more bytes than the ceiling; `held` are the bytes
/// before it.
pub(super) fn check(ceiling: Option<usize>, held: usize, needed: usize) -> Result<()> {
    match ceiling {
        Some(ceiling) if needed > ceiling => Err(Error::MemoryCeiling { ceiling, held, needed }),
        _ => Ok(()),
    }
}

impl LayerCache {
    /// Minimum bytes by which a call makes the store grow, estimated before anything is computed. 0
    /// for a call that compresses, since its result is not known yet.
    pub(super) fn added(
        &self,
        context: Context<'_>,
        input: &LayerInput,
        guard: &StoreGuard,
    ) -> Result<usize> {
        let store = guard.store.as_ref();
        let plan = CapacityPlan::new(context, input, store, self.window.size())?;
        if plan.budget.is_some() && CompressionDue::of(context.policy, input.span.phase).compress {
            return Ok(0);
        }
        let needed = store.columns().saturating_add(input.queries.positions.dims()[2]);
        let capacity = match input.span.padded {
            // Room that is there may be kept where padding makes way.
            true => needed,
            false if store.columns() > 0 && needed <= store.capacity() => store.capacity(),
            false => plan.grown(needed),
        };
        Ok(store.least_bytes(capacity).saturating_sub(store.bytes()))
    }
}
