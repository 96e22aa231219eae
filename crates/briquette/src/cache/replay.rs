//! Decode steps of a cache that are captured and replayed.

use super::{
    KvCache,
    call::{
        compress::CompressionDue,
        in_place::{evicts_in_place, grows},
    },
    layer::LayerCache,
    progress::{InputSpan, Phase},
    update_state::NOT_RECORDED,
};
use crate::{
    Error, Policy, Result,
    policy::PositionMode,
    state::{Replay, StateTensor, StateVisitor},
    store::ReplayStore,
};

/// Why steps of layers whose values are in their keys are not recorded.
const VALUES: &str = "values are channels of keys, which every call lays out";
const SEVERAL: &str = "layers lie on several devices, and a recording is of one";

impl Replay for KvCache {
    fn visit_state(&mut self, visitor: &mut dyn StateVisitor) -> Result<()> {
        self.check_complete()?;
        self.policies().try_for_each(check_capturable)?;
        if self.config.input_check.applies(false) {
            return Err(Error::stage("cache", "input check", "reads every token back"));
        }
        if let Some(reason) = self.launched_reason() {
            return Err(Error::stage("cache", "step", reason));
        }
        if self.rotated {
            return Err(Error::stage("cache", "Rotated", "leaves positions to the model"));
        }
        if let Some((_, positions)) = &mut self.positions {
            visitor.tensor(StateTensor::Int3(positions));
        }
        for (layer, policy) in self.layers_and_policies() {
            let visited = match &mut layer.store {
                Some(store) => store.replay().map(|store| store.visit_state(visitor)).is_some(),
                None => true,
            };
            if !visited || !layer.log.is_empty() {
                let name = policy.store().name();
                return Err(Error::stage("store", name, "does not say what a step changes"));
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
        self.launched_reason().or_else(|| self.policies().find_map(reason_of))
    }

    fn step_kind(&mut self) -> Option<u64> {
        if self.fallback_reason().is_some() {
            return None;
        }
        let all = || self.layers.iter().zip(self.policies());
        let compresses = |(layer, policy): (&LayerCache, &Policy)| {
            // Tokens of a draft may be due beside the next one.
            let due = layer.progress.decoded() + 1;
            let every = policy.schedule().decode_every;
            every.is_some_and(|every| due > every || every > 1 && due == every)
        };
        if all().any(compresses) {
            return None;
        }
        // A token that ends a local window moves its sums.
        let ends = all().any(|(layer, policy)| {
            let local = policy.observes().local;
            local > 0 && layer.local_queries + 1 >= local
        });
        if self.policies().any(|policy| compresses_every_token(policy) && grows(policy))
            && self.free_slots().is_none_or(|tokens| tokens == 0)
        {
            return None;
        }
        let mut stores = self.layers.iter_mut().filter_map(LayerCache::replay);
        if stores.any(|store| store.is_next_apart()) {
            return None;
        }
        Some(u64::from(ends))
    }

    fn advance(&mut self) -> Result<()> {
        let batch = self.batch.unwrap_or(0);
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
        if let (Some((host, _)), Some(span)) = (&mut self.positions, arrivals.last()) {
            host.clone_from(&span.positions);
        }
        for ((layer, policy), span) in self.layers_and_policies().zip(arrivals) {
            let local = policy.observes().local;
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
            let compressed = CompressionDue::of(policy, span.phase).compress;
            layer.progress = span.into_progress(compressed);
        }
        Ok(())
    }

    fn begin_device_indexing(&mut self, tokens: usize) -> Result<()> {
        self.make_free_slots(tokens)?;
        let begun = self.layers_and_policies().try_for_each(|(layer, policy)| {
            if compresses_every_token(policy) {
                return Ok(());
            }
            let decoded = layer.progress.decoded();
            let until_next = |every: usize| every.saturating_sub(decoded).max(1);
            let tokens = policy.schedule().decode_every.map_or(tokens, until_next).min(tokens);
            match layer.replay().is_some_and(|store| store.begin_device_indexing(tokens)) {
                true => Ok(()),
                false => {
                    let name = policy.store().name();
                    Err(Error::stage("store", name, "cannot let the device count"))
                }
            }
        });
        if begun.is_err() {
            self.end_device_indexing();
        }
        begun
    }

    fn end_device_indexing(&mut self) {
        let stores = self.layers.iter_mut().filter_map(LayerCache::replay);
        stores.for_each(|store| store.end_device_indexing());
    }

    fn open_columns(&mut self) -> Option<usize> {
        if self.launched_reason().is_some() {
            return None;
        }
        if self.policies().all(compresses_every_token) {
            return self.free_slots();
        }
        if self.fallback_reason().is_some() {
            return None;
        }
        let mut least = usize::MAX;
        for (layer, policy) in self.layers_and_policies() {
            if !compresses_every_token(policy) {
                least = least.min(layer.open_columns(policy)?);
            }
        }
        // Layers with windows come to hold them beside those that grow.
        Some(self.free_slots().map_or(least, |slots| slots.min(least)))
    }

    fn prepare_positions(&mut self, end: usize) {
        if self.policies().any(|policy| policy.positions() != PositionMode::InCache) {
            self.reach = end;
        }
    }
}

/// Refuses a policy whose decode steps cannot be captured.
fn check_capturable(policy: &Policy) -> Result<()> {
    if compresses_every_token(policy) && !policy.is_capturable() {
        return Err(Error::stage("policy", policy.name(), "decides on the host at every token"));
    }
    if policy.schedule().decode_every.is_some() && policy.store().repacks_entries() {
        let name = policy.store().name();
        return Err(Error::stage("store", name, "packs entries anew when others are dropped"));
    }
    Ok(())
}

/// Why steps of a policy cannot be replayed; `None` if they can.
fn reason_of(policy: &Policy) -> Option<&'static str> {
    match policy.schedule().decode_every? {
        1 if grows(policy) => reads_growth(policy),
        1 => None,
        _ => (policy.observes().window > 0).then_some("the host counts its last queries"),
    }
}

/// Why steps cannot be replayed under a budget that grows with the tokens seen; `None` if they can.
fn reads_growth(policy: &Policy) -> Option<&'static str> {
    if policy.scorer().depends_on().budget {
        return Some("its scores depend on a budget that grows with the tokens seen");
    }
    let reason = "its budget grows with the tokens seen, and entries are laid out anew";
    (!evicts_in_place(policy)).then_some(reason)
}

fn compresses_every_token(policy: &Policy) -> bool {
    policy.schedule().decode_every == Some(1)
}

impl KvCache {
    /// Why no step is recorded, whatever the policy; `None` if it may be.
    fn launched_reason(&self) -> Option<&'static str> {
        let reasons = [
            (self.config.values_in_keys, VALUES),
            (!self.recurrent.is_empty(), NOT_RECORDED),
            (self.devices.are_several(), SEVERAL),
        ];
        reasons.into_iter().find_map(|(holds, reason)| holds.then_some(reason))
    }

    /// The policy of each layer.
    fn policies(&self) -> impl Iterator<Item = &Policy> {
        (0..self.layers.len()).map(|layer| self.policy_of(layer))
    }

    /// The highest position that is encoded when these tokens arrive.
    fn last_position(&self, arrivals: &[InputSpan]) -> usize {
        let of_layer = |((layer, policy), span): ((&LayerCache, &Policy), &InputSpan)| {
            let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
            match policy.positions() {
                // The new token's is counted before one goes.
                PositionMode::InCache => most(&layer.held),
                _ => most(span.seen()).saturating_sub(1),
            }
        };
        let layers = self.layers.iter().zip(self.policies()).zip(arrivals);
        layers.map(of_layer).max().unwrap_or(0)
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

    /// Number of columns that are still free where the device counts them; `None` if the host must.
    fn open_columns(&mut self, policy: &Policy) -> Option<usize> {
        // Where weights are added up their columns are counted by the host.
        if policy.positions() == PositionMode::InCache || policy.observes().counts_queries() {
            return None;
        }
        let encodes = policy.positions() == PositionMode::Deferred;
        let store = self.replay()?;
        if encodes && !store.encodes_what_it_counts() { None } else { store.open_columns() }
    }

    /// Whether the device counts the index of its next column.
    fn indexes_on_device(&mut self) -> bool {
        self.replay().is_some_and(|store| store.indexes_on_device())
    }
}
