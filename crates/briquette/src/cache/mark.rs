//! Calls that are taken back: a prompt that has not arrived whole, and decoded tokens.

use super::{KvCache, call::store_guard::drop_free_slots, layer::LayerCache};
use crate::{Error, Policy, Result, check, ops::AttentionStatistics, stage::AttentionRequest};

/// A layer at an earlier time, without its entries: later ones lie behind those of that time, and
/// are cut off.
#[derive(Clone, Debug)]
pub(super) struct Earlier {
    layer: LayerCache,
    statistics: AttentionStatistics,
}

/// The layer as it was before the calls that may be taken back.
#[derive(Clone, Debug)]
pub(super) enum Mark {
    /// Before a prompt behind other tokens; whether the entries from before it are still what they
    /// were.
    Prompt { before: Box<Earlier>, is_reversible: bool },
    /// Before each token of a draft.
    Draft { before: Vec<Earlier> },
}

impl Policy {
    /// Whether decoded tokens change more of a layer than its entries.
    pub(super) fn observes_decoded(&self) -> bool {
        let observes = self.observes();
        let in_decoding = self.schedule().decode_every.is_some();
        observes.counts_queries()
            || in_decoding && (observes.window > 0 || observes.holds_queries())
    }
}

impl KvCache {
    /// Takes the last columns back, so that `columns` are left of those that the cache has
    /// [seen](Self::columns_seen), such as tokens of a draft that the model does not accept. Where
    /// rows have seen different numbers, `columns` are those of the row that has seen most.
    ///
    /// A policy that compresses decoded tokens goes back to its last compression, and one that
    /// [sums or looks at](Policy::needs_queries) the weights of decoded queries to the beginning of
    /// the last [draft](Self::begin_decode). Others go back to the last compression as well, and
    /// [`Policy::full`](Policy::full) to any column. A store that has packed tokens goes back to
    /// these.
    ///
    /// The cache is then as if the columns had not come, except under a policy that compresses
    /// decoded tokens: what it has dropped for a draft stays dropped.
    ///
    /// # Errors
    /// [`Error::TruncateTooFar`] with the least number of columns;
    /// [`Error::InvalidParameter`] for no columns ([`reset`](Self::reset) does that) and for more
    /// than there are; [`Error::PromptUnfinished`]. The cache is then as it was.
    pub fn truncate(&mut self, columns: usize) -> Result<()> {
        check::count("columns", columns)?;
        self.check_complete()?;
        let seen = self.columns_seen().into_iter().max().unwrap_or(0);
        let Some(dropped) = seen.checked_sub(columns) else {
            return check::refuse("columns", columns, format!("at most the {seen} columns seen"));
        };
        if dropped == 0 {
            return Ok(());
        }
        let observes = self.policy.observes_decoded();
        let least = self.layers.iter().map(|layer| seen - layer.reversible(observes)).max();
        if let Some(least) = least.filter(|&least| least > columns) {
            return Err(Error::TruncateTooFar { columns, least });
        }
        let layers: Vec<LayerCache> =
            self.layers.iter().map(|layer| layer.without(dropped)).collect();
        if let Some(rollback) = self.active_transaction.rollback() {
            rollback.remember_all(&self.layers);
        }
        self.layers = layers;
        Ok(())
    }
}

impl LayerCache {
    /// Lays its entries out by position, as prompts and drafts do, and returns itself without them.
    pub(super) fn earlier(&mut self) -> Result<Option<Earlier>> {
        let Some(store) = &mut self.store else { return Ok(None) };
        drop_free_slots(store.as_mut(), &self.held)?;
        if let Some(slots) = store.in_place() {
            slots.order()?;
        }
        let statistics = store.statistics();
        Ok(Some(Earlier { layer: Self { store: None, mark: None, ..self.clone() }, statistics }))
    }

    /// Remembers the layer before a prompt.
    pub(super) fn mark_prompt(&mut self) -> Result<()> {
        let before = self.earlier()?.map(Box::new);
        let mark = before.map(|before| Mark::Prompt { before, is_reversible: true });
        self.mark = mark.map(Box::new);
        Ok(())
    }

    /// Returns layer number `layer` as it was before the prompt that is arriving.
    pub(super) fn before_prompt(&self, layer: usize, observes: AttentionRequest) -> Result<Self> {
        let Some(Mark::Prompt { before, is_reversible }) = self.mark.as_deref() else {
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
    fn reversible(&self, observes_decoded: bool) -> usize {
        if let Some(Mark::Draft { before }) = self.mark.as_deref() {
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
    fn without(&self, columns: usize) -> Self {
        if let Some(Mark::Draft { before }) = self.mark.as_deref()
            && let Some(number) = before.len().checked_sub(columns)
            && let Some(earlier) = before.get(number)
        {
            let mark = Mark::Draft { before: before[..number].to_vec() };
            return Self { mark: Some(Box::new(mark)), ..self.back_to(earlier, columns) };
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
