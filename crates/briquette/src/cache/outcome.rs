//! The outcome of a call, until nothing can fail any more.

use burn::tensor::Tensor;

use super::{
    AttentionStatistics, Entries,
    compress::{Compressed, Snapshot},
    room::Room,
};
use crate::Policy;

/// The outcome of a call, until nothing can fail any more.
pub(super) struct Outcome {
    pub(super) output: Tensor<4>,
    pub(super) change: StoreChange,
    /// Tokens held after it, one number a batch row and kv head.
    pub(super) held: Vec<usize>,
    /// Decoded queries in the local window.
    pub(super) local_queries: usize,
    pub(super) state: Option<Box<Tensor<2>>>,
    pub(super) measure: Option<Vec<f64>>,
    /// The entries as they are now, if they are to be compressed together with those of other layers.
    pub(super) snapshot: Option<(Box<Snapshot>, Box<Entries>)>,
}

pub(super) enum StoreChange {
    /// The columns were appended; only what is counted of them is new.
    Appended { tracks: Box<AttentionStatistics> },
    /// These entries are all there is, with room for so many columns.
    Replaced { entries: Box<Entries>, capacity: usize },
}

impl Outcome {
    /// Compression leaves this; buffers are now so wide.
    pub(super) fn replace_by(&mut self, compressed: Compressed, room: &Room, capacity: usize) {
        let capacity = room.after_compression(compressed.entries.columns(), capacity);
        self.take(compressed, capacity);
    }

    /// The same, decided together with other layers.
    pub(super) fn replace_among_layers(&mut self, compressed: Compressed, policy: &Policy) {
        let capacity = Room::compressed(policy, compressed.entries.columns());
        self.take(compressed, capacity);
    }

    fn take(&mut self, compressed: Compressed, capacity: usize) {
        let Compressed { entries, counts, state, scores } = compressed;
        self.change = StoreChange::Replaced { entries: Box::new(entries), capacity };
        self.held = counts;
        self.state = state.map(Box::new);
        if let (Some((snapshot, _)), Some(scores)) = (&mut self.snapshot, scores) {
            snapshot.scores = scores;
        }
    }
}
