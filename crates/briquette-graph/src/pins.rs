//! Tensors of a cache that every step makes anew: a replay has to find them where the step before
//! left them.

use std::collections::BTreeSet;

use burn_cubecl::tensor::CubeTensor;

use briquette::{
    KvCache, Result,
    state::{Replay, StateTensor, StateVisitor},
};

use crate::buffer::{Place, of_state, overwrite, put};

/// A cache before or after a step.
#[derive(Default)]
pub(crate) struct State {
    /// The numbers that decide on the host what the next step launches.
    pub(crate) numbers: Vec<usize>,
    /// Where tensors lie; `None` for one that lies on no device of CubeCL's.
    pub(crate) places: Vec<Option<Place>>,
}

impl StateVisitor for State {
    fn tensor(&mut self, tensor: StateTensor<'_>) {
        self.places.push(of_state(&tensor).as_ref().map(Place::of));
    }

    fn number(&mut self, number: usize) {
        self.numbers.push(number);
    }
}

impl State {
    /// Whether the tensors of the other state are those of this one, in the same order.
    pub(crate) fn has_tensors_of(&self, other: &Self) -> bool {
        self.numbers == other.numbers && self.places.len() == other.places.len()
    }

    pub(crate) fn of(cache: &mut KvCache) -> Result<Self> {
        let mut state = Self::default();
        cache.visit_state(&mut state)?;
        Ok(state)
    }
}

/// The tensors that steps make anew, as they were before a step: what comes of it is written over
/// them.
#[derive(Default)]
pub(crate) struct Pins {
    /// The places of these tensors in the state, ascending.
    numbers: BTreeSet<usize>,
    /// Those of the step that is running, in the same order.
    buffers: Vec<CubeTensor>,
    next: usize,
    /// Whether tensors are taken up or written over.
    writes: bool,
}

impl StateVisitor for Pins {
    fn tensor(&mut self, tensor: StateTensor<'_>) {
        let number = self.next;
        self.next += 1;
        if !self.numbers.contains(&number) {
            return;
        }
        let pin = self.numbers.range(..number).count();
        match (self.writes, of_state(&tensor)) {
            (_, None) => {}
            (false, Some(buffer)) => self.buffers.push(buffer),
            (true, Some(buffer)) => {
                let Some(target) = self.buffers.get(pin) else { return };
                let is_like = buffer.meta.shape() == target.meta.shape();
                if is_like && Place::of(&buffer) != Place::of(target) {
                    overwrite(target, buffer);
                    put(tensor, target.clone());
                }
            }
        }
    }

    fn number(&mut self, _: usize) {}
}

impl Pins {
    /// From the next step on these too.
    pub(crate) fn add(&mut self, numbers: Vec<usize>) {
        self.numbers.extend(numbers);
    }

    pub(crate) fn clear(&mut self) {
        self.numbers.clear();
    }

    /// Holds the tensors as they are.
    pub(crate) fn take(&mut self, cache: &mut KvCache) -> Result<()> {
        (self.next, self.writes) = (0, false);
        self.buffers.clear();
        if self.numbers.is_empty() {
            return Ok(());
        }
        cache.visit_state(self)
    }

    /// Writes what has come of them over them, and gives them back to the cache. Nothing is written
    /// where the step has changed which tensors there are since `before` it: others stand in their
    /// places then.
    pub(crate) fn put_back(&mut self, cache: &mut KvCache, before: &State) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(());
        }
        (self.next, self.writes) = (0, true);
        let done = State::of(cache).and_then(|after| match after.has_tensors_of(before) {
            true => cache.visit_state(self),
            false => Ok(()),
        });
        self.buffers.clear();
        done
    }
}
