//! Free slots in heads that may keep more tokens than they hold, so that their decode steps are
//! those of a head at its budget.

use std::sync::Arc;

use super::{
    KvCache,
    call::in_place::{evicts_in_place, grows},
    growth::Growth,
    layer::LayerCache,
};
use crate::{Result, columns::right_aligned_entries, store::SlotStore};

impl KvCache {
    /// Number of tokens until a head that may keep more has no free slot, or else until no slot is
    /// free. `None` if every head holds all that it may and no slot is free, or if the layers
    /// cannot have free slots.
    ///
    /// Where budgets grow with the tokens seen, number of tokens at which the heads' budgets are
    /// known; `None` if the next token makes a head evict more than one entry.
    pub(super) fn free_slots(&mut self) -> Option<usize> {
        let may_have = evicts_in_place(&self.policy) && self.config.memory_ceiling.is_none();
        if !may_have {
            return None;
        }
        if grows(&self.policy) {
            return self.tokens_ahead();
        }
        if self.policy.reducer().makes_clusters() {
            return None;
        }
        let (mut is_any, mut most, mut least) = (false, 0, None);
        for layer in &mut self.layers {
            let LayerCache { share, held, store, .. } = layer;
            let share = share.as_ref()?;
            let store = store.as_mut().and_then(|store| store.in_place());
            let Some(slots) = store.and_then(|store| store.slots_with_free()) else {
                if held != share {
                    is_any = true;
                    least = Some(0);
                }
                continue;
            };
            is_any = true;
            for ((slots, held), share) in slots.iter().zip(held).zip(share) {
                let free = slots - *held;
                most = most.max(free);
                // A head without a free slot could not take a token that it may keep.
                if slots < share {
                    least = Some(least.map_or(free, |least: usize| least.min(free)));
                }
            }
        }
        is_any.then(|| least.unwrap_or(most))
    }

    /// Number of tokens at which the heads' budgets are known; `None` if the next token makes a
    /// head evict more than one entry.
    fn tokens_ahead(&mut self) -> Option<usize> {
        let of_layer = |layer: &mut LayerCache| {
            layer.share.as_ref()?;
            let has_slots = layer.slots_with_free().is_some();
            let growth = layer.growth.as_ref();
            let left = growth.and_then(|growth| growth.tokens_left(layer.progress.seen()));
            match left {
                Some(0) if growth.is_some_and(|growth| growth.is_empty()) => None,
                Some(left) if has_slots => Some(left),
                _ => Some(0),
            }
        };
        self.layers.iter_mut().map(of_layer).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Makes free slots for at least `tokens` tokens, as far as heads may keep more than they hold.
    /// Marks layers whose heads hold all that they may as full.
    ///
    /// # Errors
    /// The errors of [`SlotStore::hold_slots`].
    pub(super) fn make_free_slots(&mut self, tokens: usize) -> Result<()> {
        let is_ragged = self.policy.store().holds_ragged_heads();
        let growth = self.forecast(tokens)?;
        // Steps are recorded of all layers or of none: others go on as far as they have slots.
        let is_stuck = growth.iter().flatten().any(Growth::is_empty);
        for (layer, growth) in self.layers.iter_mut().zip(growth) {
            layer.growth = growth.map(Arc::new).or(layer.growth.take());
        }
        if is_stuck {
            return Ok(());
        }
        self.layers.iter_mut().try_for_each(|layer| layer.make_free_slots(tokens, is_ragged))
    }
}

impl LayerCache {
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
