//! Operands of the operation that belong together, or are of several kinds.

use crate::common::backend::*;

/// What is changed.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Changed<B: Backend> {
    pub(super) directions: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
    pub(super) clusters: IntTensor<B>,
    pub(super) norms: FloatTensor<B>,
    pub(super) representatives: IntTensor<B>,
    pub(super) tokens_by_cluster: IntTensor<B>,
    pub(super) padding_columns: IntTensor<B>,
    pub(super) statistics: FloatTensor<B>,
    /// Whether there are statistics, and not a tensor that stands in for them.
    pub(super) is_tracked: bool,
}

/// What is read.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Read<B: Backend> {
    pub(super) counted: FloatTensor<B>,
    pub(super) scores: FloatTensor<B>,
    pub(super) offsets: IntTensor<B>,
    pub(super) new_keys: FloatTensor<B>,
    pub(super) new_values: FloatTensor<B>,
    pub(super) new_positions: IntTensor<B>,
    #[extension_type]
    pub(super) limits: Limits<B>,
}

/// The numbers of every head.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Limits<B: Backend> {
    /// The same of all: the first and the last clusters that stay, and the tokens that a head may
    /// hold before and after.
    Alike { numbers: [usize; 4] },
    /// Those of each head, at this token or those from it on: see
    /// [`EvictLimits`](briquette_ops::EvictLimits).
    Differ { table: IntTensor<B> },
}
