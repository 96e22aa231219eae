//! Operands of the operation that are of several kinds.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

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

/// The threshold there was.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Before<B: Backend> {
    Nothing,
    Threshold { of_rows: FloatTensor<B> },
}
