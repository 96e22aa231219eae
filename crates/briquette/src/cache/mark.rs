//! A prompt that is taken back before it has arrived whole.

use super::{call::store_guard::drop_free_slots, layer::LayerCache};
use crate::{Error, Result, ops::AttentionStatistics, stage::AttentionRequest};

/// A layer before a prompt that comes behind other tokens.
#[derive(Clone, Debug)]
pub(super) struct PromptMark {
    /// The layer without its store: the entries of the prompt lie behind those from before it, and
    /// are cut off.
    before: LayerCache,
    statistics: AttentionStatistics,
    /// Whether the entries from before the prompt are still what they were.
    pub(super) is_reversible: bool,
}

impl LayerCache {
    /// Remembers the layer before a prompt. Lays its entries out by position, as prompts do.
    pub(super) fn mark_prompt(&mut self) -> Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        drop_free_slots(store.as_mut(), &self.held)?;
        if let Some(slots) = store.in_place() {
            slots.order()?;
        }
        let statistics = store.statistics();
        let before = Self { store: None, mark: None, ..self.clone() };
        self.mark = Some(Box::new(PromptMark { before, statistics, is_reversible: true }));
        Ok(())
    }

    /// Returns layer number `layer` as it was before the prompt that is arriving.
    pub(super) fn before_prompt(&self, layer: usize, observes: AttentionRequest) -> Result<Self> {
        let Some(mark) = &self.mark else { return Ok(Self::new(observes)) };
        let PromptMark { before, statistics, is_reversible } = mark.as_ref();
        let columns = |layer: &Self| layer.progress.columns().first().copied().unwrap_or(0);
        let arrived = columns(self) - columns(before);
        let mut store = self.store.clone();
        if let Some(store) = store.as_mut().filter(|_| arrived > 0) {
            if !is_reversible {
                return Err(Error::PromptNotReversible { layer, arrived });
            }
            store.truncate(store.columns() - arrived);
            if !statistics.is_empty() {
                store.set_statistics(statistics.clone());
            }
        }
        let mut progress = before.progress.clone();
        progress.withdraw();
        Ok(Self { store, progress, ..before.clone() })
    }
}
