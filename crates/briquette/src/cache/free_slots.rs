//! Free slots in heads that may keep more tokens than they hold, so that their decode steps are
//! those of a head at its budget.

use std::sync::Arc;

use super::{
    KvCache,
    call::in_place::{evicts_in_place, grows},
    growth::Growth,
    layer::LayerCache,
};
use crate::{Policy, Result, columns::right_aligned_entries, store::SlotStore};

impl KvCache {
    /// Number of tokens until a head that may keep more has no free slot, or else until no slot is
    /// free. `None` if every head holds all that it may and no slot is free, or if the layers
    /// cannot have free slots.
    ///
    /// Where budgets grow with the tokens seen, number of tokens at which the heads' budgets are
    /// known; `None` if the next token makes a head evict more than one entry.
    pub(super) fn free_slots(&mut self) -> Option<usize> {
        if self.config.memory_ceiling.is_some() {
            return None;
        }
        let (mut is_any, mut most, mut least) = (false, 0, None);
        for (layer, policy) in self.layers_and_policies() {
            if !has_free_slots(policy) {
                continue;
            }
            let open = match grows(policy) {
                true => OpenSlots::Until(layer.tokens_ahead()?),
                false => layer.open_slots()?,
            };
            match open {
                OpenSlots::Full => {}
                OpenSlots::Free(free) => (is_any, most) = (true, most.max(free)),
                OpenSlots::Until(tokens) => {
                    is_any = true;
                    least = Some(least.map_or(tokens, |least: usize| least.min(tokens)));
                }
            }
        }
        is_any.then(|| least.unwrap_or(most))
    }

    /// Makes free slots for at least `tokens` tokens, as far as heads may keep more than they hold.
    /// Marks layers whose heads hold all that they may as full.
    ///
    /// # Errors
    /// The errors of [`SlotStore::hold_slots`].
    pub(super) fn make_free_slots(&mut self, tokens: usize) -> Result<()> {
        let growth = self.forecast(tokens)?;
        // Steps are recorded of all layers or of none: others go on as far as they have slots.
        let is_stuck = growth.iter().flatten().any(Growth::is_empty);
        for (layer, growth) in self.layers.iter_mut().zip(growth) {
            layer.growth = growth.map(Arc::new).or(layer.growth.take());
        }
        if is_stuck {
            return Ok(());
        }
        let mut slotted = self.layers_and_policies().filter(|(_, policy)| has_free_slots(policy));
        slotted.try_for_each(|(layer, policy)| {
            layer.make_free_slots(tokens, policy.store().holds_ragged_heads())
        })
    }
}

/// Whether heads that may keep more than they hold get free slots under this policy.
fn has_free_slots(policy: &Policy) -> bool {
    evicts_in_place(policy) && (grows(policy) || !policy.reducer().makes_clusters())
}

/// Slots of a layer that evicts in place.
enum OpenSlots {
    /// Every head holds all that it may, and no slot is free.
    Full,
    /// Heads have all slots that they may have, and so many are free at most.
    Free(usize),
    /// Slots have to be made in so many tokens.
    Until(usize),
}

impl LayerCache {
    /// The slots of its heads; `None` if it cannot have free ones, since how many each may keep is
    /// not known, or the next token drops several entries.
    fn open_slots(&mut self) -> Option<OpenSlots> {
        let share = self.share.clone()?;
        if self.exceeds(&share) {
            return None;
        }
        let Some(slots) = self.slots_with_free() else {
            return Some(if self.held == share { OpenSlots::Full } else { OpenSlots::Until(0) });
        };
        let free = |(slots, held): (&usize, &usize)| slots.saturating_sub(*held);
        let heads = slots.iter().zip(&self.held);
        // A head without a free slot could not take a token that it may keep.
        let grown = heads.clone().zip(&share).filter(|((slots, _), share)| slots < share);
        Some(match grown.map(|(head, _)| free(head)).min() {
            Some(tokens) => OpenSlots::Until(tokens),
            None => OpenSlots::Free(heads.map(free).max().unwrap_or(0)),
        })
    }

    /// Number of tokens at which the heads' budgets are known; `None` if the next token makes a
    /// head evict more than one entry.
    fn tokens_ahead(&mut self) -> Option<usize> {
        self.share.as_ref()?;
        let has_slots = self.slots_with_free().is_some();
        let growth = self.growth.as_ref();
        let left = growth.and_then(|growth| growth.tokens_left(self.progress.seen()));
        match left {
            Some(0) if growth.is_some_and(|growth| growth.is_empty()) => None,
            Some(left) if has_slots => Some(left),
            _ => Some(0),
        }
    }

    /// Whether heads hold more than their shares: tokens of a draft, until the next one compresses.
    fn exceeds(&self, share: &[usize]) -> bool {
        self.held.iter().zip(share).any(|(held, share)| held > share)
    }

    /// Number of slots of each head, if some may be free.
    pub(super) fn slots_with_free(&mut self) -> Option<Vec<usize>> {
        self.slots()?.slots_with_free()
    }

    pub(super) fn slots(&mut self) -> Option<&mut dyn SlotStore> {
        self.store.as_mut()?.in_place()
    }

    /// Makes free slots for `tokens` tokens, or for the tokens of its growth.
    fn make_free_slots(&mut self, tokens: usize, is_ragged: bool) -> Result<()> {
        let Some(share) = self.share.clone() else { return Ok(()) };
        let growth = self.growth.clone();
        if growth.is_none() && self.exceeds(&share) {
            return Ok(());
        }
        if growth.is_none() && self.held == share {
            self.slots().into_iter().for_each(SlotStore::fill_slots);
            return Ok(());
        }
        // A half more at least, so that a layer that grows is copied few times.
        let room = |(&held, &share): (&usize, &usize)| share.min(held + tokens.max(held / 2));
        let mut slots: Vec<usize> = match &growth {
            Some(growth) => growth.entries.clone(),
            None => self.held.iter().zip(&share).map(room).collect(),
        };
        let columns = growth.as_ref().map_or(0, |growth| growth.columns);
        if let Some(store) = self.store.as_mut().filter(|store| store.is_clustered()) {
            return store.in_place().map_or(Ok(()), |store| store.add_rows(&slots, columns));
        }
        let most = slots.iter().copied().max().unwrap_or(0);
        if !is_ragged {
            slots.fill(most);
        }
        let Some(entries) = self.entries()? else { return Ok(()) };
        let entries = right_aligned_entries(entries, most);
        match self.slots() {
            Some(store) => store.hold_slots(entries, &slots),
            None => Ok(()),
        }
    }
}
