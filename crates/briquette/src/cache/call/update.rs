//! Changes that a call makes to its layer, computed before any of them is made.

use burn::tensor::Tensor;

use super::compress::Snapshot;
use crate::{
    ops::{AttentionStatistics, Entries},
    reduce::Reduced,
    store::Eviction,
    view::Measure,
};

pub(in crate::cache) struct LayerUpdate {
    pub(in crate::cache) change: StoreChange,
    /// Tokens held per batch row and kv head, rows first, padding not counted.
    pub(in crate::cache) held: Vec<usize>,
    /// Entries that each head may keep, by the last compression in decoding.
    pub(in crate::cache) share: Option<Vec<usize>>,
    /// Decoded queries in the local window.
    pub(in crate::cache) local_queries: usize,
    /// The reducer's new state; the old one stays if there is none.
    pub(in crate::cache) state: Option<Box<Tensor<2>>>,
    /// The allocator's new measure per batch row; the old one stays if there is none.
    pub(in crate::cache) measure: Option<Measure>,
    /// The snapshot for layers that are compressed together, and its entries.
    pub(in crate::cache) snapshot: Option<(Box<Snapshot>, Box<Entries>)>,
}

/// The change of a store at the end of a call.
pub(in crate::cache) enum StoreChange {
    /// The columns were appended before; only their statistics are new.
    Appended { statistics: Box<AttentionStatistics> },
    /// The weakest entry of each head frees its slot; statistics are replaced.
    Evicted { eviction: Box<Eviction>, statistics: Box<AttentionStatistics> },
    /// All entries are replaced by these, with room for `capacity` columns.
    Replaced { entries: Box<Entries>, capacity: usize },
}

impl LayerUpdate {
    /// Adds a compression to the update. Its entries get room for `capacity` columns.
    pub(in crate::cache) fn compress(&mut self, reduced: Reduced, capacity: usize) {
        let Reduced { entries, counts, state } = reduced;
        self.change = StoreChange::Replaced { entries: Box::new(entries), capacity };
        self.held = counts;
        self.state = state.map(Box::new);
    }
}
