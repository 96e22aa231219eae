use std::{any::Any, fmt::Debug};

use burn::tensor::Tensor;

use crate::{
    LayerView, Result,
    budget::{Budget, Protect},
    ops::{Entries, EvictMergeInput, EvictSpreadInput},
    stage::AttentionRequest,
};

/// Reduces the entries of a layer to those that are kept, by evicting or merging the rest.
pub trait Reducer: Any + Debug + Send + Sync {
    /// Name in tables and errors.
    fn name(&self) -> &str;

    /// Name and main parameters, for tables.
    fn summary(&self) -> String {
        self.name().to_owned()
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Checks that the reducer can reach `budget` with the entries that `protect` keeps.
    ///
    /// # Errors
    /// [`Error::MergeBudget`](crate::Error::MergeBudget) or
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check_budget(&self, budget: Budget, protect: Protect) -> Result<()> {
        let _ = (budget, protect);
        Ok(())
    }

    /// Returns what the reducer needs from the attention pass, besides the requests of scorer and
    /// allocator.
    fn observes(&self) -> AttentionRequest {
        AttentionRequest::nothing()
    }

    /// Whether reducing in two steps gives the same entries as reducing in one: true of eviction,
    /// false of merging.
    fn drops_only(&self) -> bool {
        false
    }

    /// Whether it can reduce every head by one entry while the store [leaves the other entries
    /// where they are](crate::store::SlotStore).
    fn reduces_in_place(&self) -> bool {
        false
    }

    /// Returns how to drop or merge the entry with the lowest score of every head, if the reducer
    /// [can do so in place](Self::reduces_in_place). Entries of `view` may be in any order, with
    /// the newest last.
    ///
    /// # Errors
    /// Any error of the reducer; the cache stays as it was.
    fn in_place(&self, view: &LayerView<'_>) -> Result<InPlace> {
        let _ = view;
        Ok(InPlace::Evict)
    }

    /// Whether every decode step launches the same kernels without reading from the device, so that
    /// it can be captured and replayed.
    fn is_capturable(&self) -> bool {
        false
    }

    /// Whether heads of a layer may end with different numbers of entries.
    fn makes_ragged_heads(&self) -> bool {
        false
    }

    /// Whether tokens share keys and values in its result.
    fn makes_clusters(&self) -> bool {
        false
    }

    /// Maximum number of columns, one per token, of a head that keeps `entries` entries; more than
    /// `entries` where tokens share entries.
    fn columns(&self, entries: usize) -> usize {
        entries
    }

    /// Whether the keys of tokens that share an entry are encoded at the position of its
    /// representative.
    fn encodes_at_representative(&self) -> bool {
        false
    }

    /// Number that the [state](Reduced::state) holds for a batch row of which nothing was reduced
    /// yet.
    fn initial_state(&self) -> f64 {
        0.0
    }

    /// Reduces the entries of each head to `keep`, one number per batch row and kv head, rows
    /// first.
    ///
    /// # Errors
    /// Any error of the reducer; the cache stays as it was.
    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced>;
}

/// Reduction by one entry, whose place a decoded token takes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum InPlace {
    /// Drops the entry.
    Evict,
    /// Merges the entry into the one with the most similar key, if it is similar enough. The new
    /// thresholds become the reducer's next state.
    Merge(Box<EvictMergeInput>),
    /// Adds the value of the entry to those of the tokens behind it.
    Spread(Box<EvictSpreadInput>),
    /// Merges the evicted cluster into the one it is most redundant with, if their redundancy
    /// exceeds `threshold`; otherwise drops it with all its tokens.
    Cluster {
        /// Redundancy above which the cluster is merged.
        threshold: f64,
    },
}

/// Result of a reducer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reduced {
    /// Remaining entries; heads that hold fewer than the widest begin with padding at position −1.
    pub entries: Entries,
    /// Number of entries per batch row and kv head, rows first. Where tokens share entries it is an
    /// upper bound, and the first of them may be padding.
    pub counts: Vec<usize>,
    /// State of the reducer for its next run in this layer, `[batch, numbers]`.
    pub state: Option<Tensor<2>>,
}

impl Reduced {
    /// The remaining entries, of which heads hold `counts`, without a state.
    pub fn new(entries: Entries, counts: Vec<usize>) -> Self {
        Self { entries, counts, state: None }
    }
}
