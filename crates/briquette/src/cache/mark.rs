//! Layers as they were before calls that may be taken back.

use super::layer::{Earlier, LayerCache, Mark};
use crate::{Error, Result, columns::longest, ops::AttentionStatistics, stage::AttentionRequest};

impl LayerCache {
    /// Returns the layer without its entries, as it is once they are laid out by position, as a
    /// prompt or a draft does it; `None` before the first token.
    pub(super) fn earlier(&self) -> Option<Earlier> {
        let mut store = self.store.clone()?;
        let mut statistics = store.statistics();
        let has_free = store.in_place().is_some_and(|slots| slots.slots_with_free().is_some());
        if has_free && !store.is_clustered() {
            let (columns, most) = (store.columns(), longest(&self.held));
            statistics = statistics.map(|one| one.narrow(2, columns - most, most));
        }
        Some(Earlier { layer: Self { store: None, mark: None, ..self.clone() }, statistics })
    }

    /// Remembers the layer before a prompt.
    pub(super) fn mark_prompt(&mut self) {
        let before = self.earlier().map(Box::new);
        self.mark = before.map(|before| Mark::Prompt { before, is_reversible: true });
    }

    /// Returns layer number `layer` as it was before the prompt that is arriving.
    pub(super) fn before_prompt(&self, layer: usize, observes: AttentionRequest) -> Result<Self> {
        let Some(Mark::Prompt { before, is_reversible }) = &self.mark else {
            return Ok(Self::new(observes));
        };
        let arrived = self.progress.count() - before.layer.progress.count();
        if arrived > 0 && !is_reversible {
            return Err(Error::PromptNotReversible { layer, arrived });
        }
        let mut layer = self.back_to(before, arrived);
        layer.progress.withdraw();
        Ok(layer)
    }

    /// Returns the layer before a token whose call has compressed it: what was dropped stays
    /// dropped.
    pub(super) fn before_compressing_token(&self, before: &Earlier) -> Earlier {
        let columns = self.store.as_ref().map_or(0, |store| store.columns()).saturating_sub(1);
        let statistics = self.store.as_ref().map(|store| store.statistics()).unwrap_or_default();
        let layer = Self {
            held: self.held.iter().map(|held| held.saturating_sub(1)).collect(),
            share: self.share.clone(),
            state: self.state.clone(),
            fixed: self.fixed,
            progress: self.progress.without(1),
            ..before.layer.clone()
        };
        Earlier { layer, statistics: statistics.map(|one| one.narrow(2, 0, columns)) }
    }

    /// Number of last columns that can be taken back.
    pub(super) fn reversible(&self, observes_decoded: bool) -> usize {
        if let Some(Mark::Draft { before }) = &self.mark {
            return before.len();
        }
        let Some(store) = self.store.as_ref().filter(|_| !observes_decoded) else { return 0 };
        let behind = store.columns().saturating_sub(self.fixed.max(store.packed_columns()));
        // A row keeps a token, so that it goes on decoding.
        let shortest = self.progress.seen().iter().copied().min().unwrap_or(0);
        behind.min(shortest.saturating_sub(1))
    }

    /// Returns the layer without its last `columns` columns, which are
    /// [`reversible`](Self::reversible).
    pub(super) fn without(&self, columns: usize) -> Self {
        if let Some(Mark::Draft { before }) = &self.mark
            && let Some(number) = before.len().checked_sub(columns)
            && let Some(earlier) = before.get(number)
        {
            let mark = Mark::Draft { before: before[..number].to_vec() };
            return Self { mark: Some(mark), ..self.back_to(earlier, columns) };
        }
        let before = Self {
            progress: self.progress.without(columns),
            held: self.held.iter().map(|held| held.saturating_sub(columns)).collect(),
            ..self.clone()
        };
        let statistics = AttentionStatistics::default();
        self.back_to(&Earlier { layer: before, statistics }, columns)
    }

    pub(super) fn back_to(&self, earlier: &Earlier, columns: usize) -> Self {
        let mut store = self.store.clone();
        if let Some(store) = store.as_mut().filter(|_| columns > 0) {
            store.truncate(store.columns() - columns);
            if !earlier.statistics.is_empty() {
                store.set_statistics(earlier.statistics.clone());
            }
        }
        Self { store, ..earlier.layer.clone() }
    }
}
