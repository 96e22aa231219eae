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

    /// Checks that it can reach a budget with these protected entries.
    ///
    /// # Errors
    /// [`Error::MergeBudget`](crate::Error::MergeBudget) or
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check_budget(&self, budget: Budget, protect: Protect) -> Result<()> {
        let _ = (budget, protect);
        Ok(())
    }

    /// Reports that it needs from the attention pass, besides those of scorer and allocator.
    fn observes(&self) -> AttentionRequest {
        AttentionRequest::nothing()
    }

    /// Whether dropping entries in two steps is the same as dropping them in one: true of eviction,
    /// false of merging.
    fn drops_only(&self) -> bool {
        false
    }

    /// Whether it can reduce every head by one entry where a store [leaves the others where they
    /// are](crate::store::SlotStore).
    fn reduces_in_place(&self) -> bool {
        false
    }

    /// How it reduces every head by one entry, the one with the lowest score, if it [can do so in
    /// place](Self::reduces_in_place). Entries of `view` may be in any order, the newest the last.
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

    /// Maximum number of columns, one per token, of a head that keeps `entries` entries: more where
    /// tokens share entries.
    fn columns(&self, entries: usize) -> usize {
        entries
    }

    /// Whether the keys of tokens that share an entry are encoded at the position of its
    /// representative.
    fn encodes_at_representative(&self) -> bool {
        false
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
    /// The entry is dropped.
    Evict,
    /// The entry is merged into the one with the most similar key, if it is similar enough; the
    /// thresholds are the reducer's next state.
    Merge(Box<EvictMergeInput>),
    /// Its value is added to those of the tokens behind it.
    Spread(Box<EvictSpreadInput>),
    /// The cluster of the entry is merged into the one that it is most redundant with, if it is
    /// more redundant than that, and else dropped with all its tokens.
    Cluster {
        /// The redundancy above which it is merged.
        threshold: f64,
    },
}

/// Result of a reducer.
#[derive(Debug)]
pub struct Reduced {
    /// Remaining entries; heads that hold fewer than the widest begin with padding at position −1.
    pub entries: Entries,
    /// Number of entries per batch row and kv head, rows first; where tokens share entries an upper
    /// bound, within which the first may be padding.
    pub counts: Vec<usize>,
    /// State of the reducer for its next run in this layer, `[batch, numbers]`.
    pub state: Option<Tensor<2>>,
}
