//! Hot operations, behind one trait: [`Ops`]. Policies never name a backend.
//!
//! Stages of one's own need what is listed here. All operations, with the input of each, are in the
//! crate `briquette-ops`, which may change between minor versions.

use std::sync::Arc;

pub(crate) use briquette_ops::*;
pub use briquette_ops::{
    AttentionOps, AttentionOutput, AttentionStatistics, ClusterOps, Clustering, Entries, EntryOps,
    EvictLimits, EvictMergeInput, EvictSpreadInput, Fallback, HeadPattern, MergeInput, MergeOps,
    ModelOps, NearestInput, OpError, Ops, PackedNumbers, Reference, Scoring, SelectInput,
    SelectOps, Selection, Split, Statistic, Visibility, Window, gather_rows, norm, padding_mask,
};

/// Returns the fastest operations of this build: kernels on the devices that have them, tensor
/// operations elsewhere.
pub fn best() -> Arc<dyn Ops> {
    #[cfg(feature = "kernels")]
    return Arc::new(briquette_kernels::Kernels::default());
    #[cfg(not(feature = "kernels"))]
    return Arc::new(Reference);
}
