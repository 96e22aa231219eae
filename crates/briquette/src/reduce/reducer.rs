use std::{any::Any, fmt::Debug};

use burn::tensor::Tensor;

use crate::{
    LayerView, Result,
    budget::{Budget, Protect},
    observes::Observes,
    ops::Entries,
};

/// Reduces the entries of a layer to the ones that may stay, evicting or merging the rest.
pub trait Reducer: Any + Debug + Send + Sync {
    /// The name used in tables and errors.
    fn name(&self) -> &str;

    /// The name and the parameters that matter, for tables.
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

    /// Checks that it can reach a budget, with what is protected.
    ///
    /// # Errors
    /// [`Error::MergeBudget`](crate::Error::MergeBudget) or
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter).
    fn check_budget(&self, budget: Budget, protect: Protect) -> Result<()> {
        let _ = (budget, protect);
        Ok(())
    }

    /// What the attention pass must report for it, besides what scorer and allocator want.
    fn observes(&self) -> Observes {
        Observes::nothing()
    }

    /// Whether dropping entries in two steps is the same as dropping them in one: true of eviction, not of merging.
    fn drops_only(&self) -> bool {
        false
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

    /// Whether tokens share keys and values in what it returns.
    fn makes_shared_entries(&self) -> bool {
        false
    }

    /// The most columns, one a token, that are left of a head that keeps `entries`: more where tokens share.
    fn columns(&self, entries: usize) -> usize {
        entries
    }

    /// Whether the keys of tokens that share one are encoded at the position of their center.
    fn encodes_at_center(&self) -> bool {
        false
    }

    /// What remains of the entries: `keep` of each head, one number a batch row and kv head, rows first.
    ///
    /// # Errors
    /// Whatever keeps the reducer from reducing; the cache is then left as it was.
    fn reduce(&self, view: &LayerView<'_>, keep: &[usize]) -> Result<Reduced>;
}

/// What a reducer leaves.
#[derive(Debug)]
pub struct Reduced {
    /// The entries that remain; heads that hold fewer than the widest begin with fillers at position −1.
    pub entries: Entries,
    /// How many each batch row and kv head holds, rows first; where tokens share how many it may hold, of which the first
    /// may be fillers.
    pub counts: Vec<usize>,
    /// What the reducer is given when it runs again in this layer, `[batch, numbers]`.
    pub state: Option<Tensor<2>>,
}
