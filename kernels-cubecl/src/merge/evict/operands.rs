//! Operands of the operations that belong together, or are of several kinds.

use crate::common::backend::*;

/// What is changed.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Changed<B: Backend> {
    pub(super) keys: FloatTensor<B>,
    pub(super) values: FloatTensor<B>,
    pub(super) positions: IntTensor<B>,
    pub(super) statistics: FloatTensor<B>,
    /// Whether there are statistics, and not a tensor that stands in for them.
    pub(super) is_tracked: bool,
}

/// What says which entries go.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Heads<B: Backend> {
    pub(super) scores: FloatTensor<B>,
    #[extension_type]
    pub(super) new: NewRows<B>,
    #[extension_type]
    pub(super) limits: Limits<B>,
    /// Whether some of the slots may be free.
    pub(super) has_free_slots: bool,
}

/// The rows of entries, and where the new token's lie.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum NewRows<B: Backend> {
    /// Behind the others.
    Behind,
    /// In tensors of their own; the others are lists.
    Beside {
        offsets: IntTensor<B>,
        keys: FloatTensor<B>,
        values: FloatTensor<B>,
        positions: IntTensor<B>,
    },
}

/// How many first and last tokens of each head stay, and whether the new one takes a free slot.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Limits<B: Backend> {
    /// As many of all.
    Alike { sinks: usize, recent: usize, takes_free: bool },
    /// The numbers of each head, at this token or those from it on: see
    /// [`EvictLimits`](briquette_ops::EvictLimits).
    Differ { table: IntTensor<B> },
}
