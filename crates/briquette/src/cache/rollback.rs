//! A failed step is rolled back to the cache as it was before it.

use std::sync::Arc;

use super::{layer::LayerCache, progress::Progress};
use crate::view::Measures;

/// A cache as it was before a step: how far its layers had come, and those that have changed since.
///
/// Buffers are shared with the cache. What a call appends stands behind the columns that were held,
/// so remembering a layer copies nothing; what is written over is copied by the backend when it is.
#[derive(Debug)]
pub(super) struct Rollback {
    progress: Vec<Progress>,
    layers: Vec<Option<LayerCache>>,
    measures: Arc<Measures>,
    batch: Option<usize>,
}

impl Rollback {
    pub(super) fn new(
        layers: &[LayerCache],
        measures: Arc<Measures>,
        batch: Option<usize>,
    ) -> Self {
        Self {
            progress: layers.iter().map(|layer| layer.progress().clone()).collect(),
            layers: vec![None; layers.len()],
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

    /// Remembers all layers as they are now.
    pub(super) fn remember_all(&mut self, layers: &[LayerCache]) {
        for (number, layer) in layers.iter().enumerate() {
            self.remember(number, || layer.clone());
        }
    }

    /// Remembers the layers that hold what is needed to compress them again.
    pub(super) fn remember_snapshots(&mut self, layers: &[LayerCache]) {
        for (number, layer) in layers.iter().enumerate() {
            if layer.snapshot().is_some() {
                self.remember(number, || layer.clone());
            }
        }
    }

    /// Takes in the layers that a step within this one has remembered.
    pub(super) fn absorb(&mut self, inner: Self) {
        for (before, layer) in self.layers.iter_mut().zip(inner.layers) {
            if before.is_none() {
                *before = layer;
            }
        }
    }

    /// Puts the layers back; returns their measures, and the rows of the batch.
    pub(super) fn restore(self, layers: &mut [LayerCache]) -> (Arc<Measures>, Option<usize>) {
        let layers = layers.iter_mut().zip(self.layers).zip(self.progress);
        for ((layer, before), progress) in layers {
            if let Some(before) = before {
                *layer = before;
            }
            layer.progress = progress;
        }
        (self.measures, self.batch)
    }
}

/// The step that a cache is in. A copy of a cache is in none.
#[derive(Debug, Default)]
pub(super) struct ActiveStep(Option<Box<Rollback>>);

impl ActiveStep {
    /// Begins a step, and returns the one it is part of.
    pub(super) fn begin(&mut self, rollback: Rollback) -> Self {
        Self(self.0.replace(Box::new(rollback)))
    }

    /// Ends a step that was part of `outer`.
    pub(super) fn end(&mut self, outer: Self) -> Option<Box<Rollback>> {
        std::mem::replace(self, outer).0
    }

    /// The cache as it was before the step.
    pub(super) fn rollback(&mut self) -> Option<&mut Rollback> {
        self.0.as_deref_mut()
    }
}

impl Clone for ActiveStep {
    fn clone(&self) -> Self {
        Self::default()
    }
}
