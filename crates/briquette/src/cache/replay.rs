//! Decode steps of a cache that are captured and replayed.

use super::{
    KvCache,
    call::{
        compress::CompressionDue,
        in_place::{evicts_in_place, grows},
    },
    layer::LayerCache,
    progress::{InputSpan, Phase},
};
use crate::{
    Error, Result,
    policy::PositionMode,
    state::{Replay, StateTensor, StateVisitor},
    store::ReplayStore,
};

/// Why steps of layers with windows are not recorded.
const WINDOWS: &str = "some layers have windows, whose entries are masked by the host";

/// Why steps of layers whose values are in their keys are not recorded.
const VALUES: &str = "values are channels of keys, which every call lays out";

impl Replay for KvCache {
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> Result<()> {
        self.check_complete()?;
        let refused = |stage, name: &str, reason: &str| Error::Stage {
            stage,
            name: name.to_owned(),
            reason: reason.to_owned(),
        };
        if self.compresses_every_token() && !self.policy.is_capturable() {
            return Err(refused(
                "policy",
                self.policy.name(),
                "decides on the host at every token",
            ));
        }
        if self.config.input_check.applies(false) {
            return Err(refused("cache", "input check", "reads every token back"));
        }
        if self.policy.schedule().decode_every.is_some() && self.policy.store().repacks_entries() {
            let name = self.policy.store().name();
            return Err(refused("store", name, "packs entries anew when others are dropped"));
        }
        if let Some(reason) = self.never_recorded() {
            return Err(refused("cache", "step", reason));
        }
        if self.rotated {
            return Err(refused("cache", "Rotated", "leaves positions to the model"));
        }
        if let Some((_, positions)) = &mut self.positions {
            visitor.tensor(StateTensor::Int3(positions));
        }
        for layer in &mut self.layers {
            let visited = match &mut layer.store {
                Some(store) => store.replay().map(|store| store.visit_state(visitor)).is_some(),
                None => true,
            };
            if !visited || !layer.log.is_empty() {
                let name = self.policy.store().name();
                return Err(refused("store", name, "does not say what a step changes"));
            }
            if !layer.indexes_on_device() && layer.slots_with_free().is_none() {
                visitor.numbers(&layer.held);
            }
            layer.window.visit_state(visitor);
            if let Some(state) = &mut layer.state {
                visitor.tensor(StateTensor::Float2(state));
            }
        }
        Ok(())
    }

    fn fallback_reason(&self) -> Option<&'static str> {
        if let Some(reason) = self.never_recorded() {
            return Some(reason);
        }
        match self.policy.schedule().decode_every? {
            1 if grows(&self.policy) => self.reads_growth(),
            1 => None,
            _ => (self.policy.observes().window > 0).then_some("the host counts its last queries"),
        }
    }

    fn step_kind(&mut self) -> Option<u64> {
        // Tokens of a draft may be due beside the next one.
        let compresses = |every| {
            let mut due = self.layers.iter().map(|layer| layer.progress.decoded() + 1);
            due.any(|due| due > every || every > 1 && due == every)
        };
        if self.fallback_reason().is_some()
            || self.policy.schedule().decode_every.is_some_and(compresses)
        {
            return None;
        }
        if self.compresses_every_token()
            && grows(&self.policy)
            && self.free_slots().is_none_or(|tokens| tokens == 0)
        {
            return None;
        }
        let mut stores = self.layers.iter_mut().filter_map(LayerCache::replay);
        if stores.any(|store| store.is_next_apart()) {
            return None;
        }
        let local = self.policy.observes().local;
        let ends = |count: usize| local > 0 && count + 1 >= local;
        Some(u64::from(self.layers.first().is_some_and(|layer| ends(layer.local_queries))))
    }

    fn advance(&mut self) -> Result<()> {
        let batch = self.batch.unwrap_or(0);
        let local = self.policy.observes().local;
        let mut arrivals = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate() {
            let span = layer.progress.arrive(number, batch, 1)?;
            if !matches!(span.phase, Phase::Decode { .. }) {
                let (name, reason) = ("step".to_owned(), "is a prompt's".to_owned());
                return Err(Error::Stage { stage: "cache", name, reason });
            }
            arrivals.push(span);
        }
        if let Some(max) = self.max_positions {
            let position = self.last_position(&arrivals);
            if position >= max {
                return Err(Error::PositionOverflow { position, max });
            }
        }
        for (layer, span) in self.layers.iter_mut().zip(arrivals) {
            if let Some((host, _)) = &mut self.positions {
                host.clone_from(&span.positions);
            }
            if local > 0 {
                layer.local_queries = (layer.local_queries + 1) % local;
            }
            if layer.indexes_on_device() {
                layer.held.iter_mut().for_each(|held| *held += 1);
                if let Some(store) = layer.replay() {
                    store.advance();
                }
            }
            let slots = layer.slots_with_free();
            let growth = layer.growth.clone().filter(|_| slots.is_some());
            if let Some(step) = growth.as_ref().and_then(|growth| growth.step(&span.seen_before)) {
                layer.held.clone_from(&step.held);
                layer.share = Some(step.kept.clone());
                if let Some(store) = layer.slots() {
                    store.count_token(&step.takes_free, &step.held);
                }
            } else if let Some(slots) = slots {
                let all = layer.held.iter_mut().zip(slots);
                all.for_each(|(held, slots)| *held = slots.min(*held + 1));
            }
            let compressed = CompressionDue::of(&self.policy, span.phase).compress;
            layer.progress = span.into_progress(compressed);
        }
        Ok(())
    }

    fn begin_device_indexing(&mut self, tokens: usize) -> Result<()> {
        if self.compresses_every_token() {
            return self.make_free_slots(tokens);
        }
        let until_next = |every: usize| {
            let decoded = self.layers.first().map_or(0, |layer| layer.progress.decoded());
            every.saturating_sub(decoded).max(1)
        };
        let tokens = self.policy.schedule().decode_every.map_or(tokens, until_next).min(tokens);
        for layer in &mut self.layers {
            if !layer.replay().is_some_and(|store| store.begin_device_indexing(tokens)) {
                let name = self.policy.store().name().to_owned();
                let reason = "cannot let the device count".to_owned();
                self.end_device_indexing();
                return Err(Error::Stage { stage: "store", name, reason });
            }
        }
        Ok(())
    }

    fn end_device_indexing(&mut self) {
        let stores = self.layers.iter_mut().filter_map(LayerCache::replay);
        stores.for_each(|store| store.end_device_indexing());
    }

    fn open_columns(&mut self) -> Option<usize> {
        if self.never_recorded().is_some() {
            return None;
        }
        if self.compresses_every_token() {
            return self.free_slots();
        }
        // Where weights are added up their columns are counted by the host.
        let adds_up = self.policy.observes().counts_queries();
        let counts_on_host = adds_up || self.fallback_reason().is_some();
        if self.policy.positions() == PositionMode::InCache || counts_on_host {
            return None;
        }
        let encodes = self.policy.positions() == PositionMode::Deferred;
        let of_layer = |layer: &mut LayerCache| {
            layer
                .replay()
                .filter(|store| !encodes || store.encodes_what_it_counts())?
                .open_columns()
        };
        self.layers.iter_mut().map(of_layer).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    fn prepare_positions(&mut self, end: usize) {
        if self.policy.positions() != PositionMode::InCache {
            self.reach = end;
        }
    }
}

impl KvCache {
    /// Why no step is recorded, whatever the policy.
    fn never_recorded(&self) -> Option<&'static str> {
        let of_values = self.config.values_in_keys.then_some(VALUES);
        self.has_windows().then_some(WINDOWS).or(of_values)
    }

    fn compresses_every_token(&self) -> bool {
        self.policy.schedule().decode_every == Some(1)
    }

    /// Why steps cannot be replayed under a budget that grows with the tokens seen; `None` if they
    /// can.
    fn reads_growth(&self) -> Option<&'static str> {
        match &self.policy {
            policy if policy.scorer().depends_on().budget => {
                Some("its scores depend on a budget that grows with the tokens seen")
            }
            policy if !evicts_in_place(policy) => {
                Some("its budget grows with the tokens seen, and entries are laid out anew")
            }
            _ => None,
        }
    }

    /// The highest position that is encoded when these tokens arrive.
    fn last_position(&self, arrivals: &[InputSpan]) -> usize {
        if self.policy.positions() != PositionMode::InCache {
            let seen = arrivals.iter().flat_map(|span| span.seen()).copied().max();
            return seen.unwrap_or(0).saturating_sub(1);
        }
        // The new token's is counted before one goes.
        self.layers.iter().flat_map(|layer| &layer.held).copied().max().unwrap_or(0)
    }
}

impl LayerCache {
    fn replay(&mut self) -> Option<&mut dyn ReplayStore> {
        self.store.as_mut()?.replay()
    }

    /// Whether its next decoded token makes the store pack others into reserved room.
    pub(super) fn packs_in_place(&mut self) -> bool {
        self.replay().is_some_and(|store| store.indexes_on_device() && store.is_next_apart())
    }

    /// Whether the device counts the index of its next column.
    fn indexes_on_device(&mut self) -> bool {
        self.replay().is_some_and(|store| store.indexes_on_device())
    }
}
