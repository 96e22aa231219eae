//! Rolls a failed transaction back to the cache as it was before.

use std::sync::Arc;

use super::{layer::LayerCache, progress::Progress, recurrent::RecurrentLayer};
use crate::view::Measures;

/// State of a cache before a transaction: the progress of its layers, and the layers that have
/// changed since.
///
/// Buffers are shared with the cache. A call appends behind the columns that were held, so
/// remembering a layer copies nothing. The backend copies a shared buffer only when it is
/// overwritten.
#[derive(Debug)]
pub(super) struct Rollback {
    progress: Vec<Progress>,
    layers: Vec<Option<LayerCache>>,
    recurrent: Vec<RecurrentLayer>,
    measures: Arc<Measures>,
    batch: Option<usize>,
}

impl Rollback {
    pub(super) fn new(
        layers: &[LayerCache],
        recurrent: Vec<RecurrentLayer>,
        measures: Arc<Measures>,
        batch: Option<usize>,
    ) -> Self {
        Self {
            progress: layers.iter().map(|layer| layer.progress().clone()).collect(),
            layers: vec![None; layers.len()],
            recurrent,
            measures,
            batch,
        }
    }

    /// Remembers a layer, unless it has been remembered before.
    pub(super) fn remember(&mut self, layer: usize, was: impl FnOnce() -> LayerCache) {
        if let Some(before @ None) = self.layers.get_mut(layer) {
            *before = Some(was());
        }
    }

    pub(super) fn remember_all(&mut self, layers: &[LayerCache]) {
        for (number, layer) in layers.iter().enumerate() {
            self.remember(number, || layer.clone());
        }
    }

    pub(super) fn remember_snapshots(&mut self, layers: &[LayerCache]) {
        for (number, layer) in layers.iter().enumerate() {
            if layer.snapshot.is_some() {
                self.remember(number, || layer.clone());
            }
        }
    }

    /// Takes over the layers that a transaction within this one has remembered.
    pub(super) fn absorb(&mut self, inner: Self) {
        for (before, layer) in self.layers.iter_mut().zip(inner.layers) {
            if before.is_none() {
                *before = layer;
            }
        }
    }

    /// Restores the layers of attention. Returns the recurrent ones, the measures and the number of
    /// batch rows.
    pub(super) fn restore(
        self,
        layers: &mut [LayerCache],
    ) -> (Vec<RecurrentLayer>, Arc<Measures>, Option<usize>) {
        let layers = layers.iter_mut().zip(self.layers).zip(self.progress);
        for ((layer, before), progress) in layers {
            if let Some(before) = before {
                *layer = before;
            }
            layer.progress = progress;
        }
        (self.recurrent, self.measures, self.batch)
    }
}

/// The transaction that a cache is in. A copy of a cache is in none.
#[derive(Debug, Default)]
pub(super) struct ActiveTransaction(Option<Box<Rollback>>);

impl ActiveTransaction {
    /// Begins a transaction, and returns the one it is part of.
    pub(super) fn begin(&mut self, rollback: Rollback) -> Self {
        Self(self.0.replace(Box::new(rollback)))
    }

    /// Ends a transaction that was part of `outer`, and returns its rollback.
    pub(super) fn end(&mut self, outer: Self) -> Option<Box<Rollback>> {
        std::mem::replace(self, outer).0
    }

    /// Returns the state of the cache before the transaction, if there is one.
    pub(super) fn rollback(&mut self) -> Option<&mut Rollback> {
        self.0.as_deref_mut()
    }
}

impl Clone for ActiveTransaction {
    fn clone(&self) -> Self {
        Self::default()
    }
}
