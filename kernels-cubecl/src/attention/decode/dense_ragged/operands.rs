//! The operand and the result that have several forms.

use crate::common::backend::*;

/// Entries that a query sees.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum KvMask<B: Backend> {
    /// The entries up to its own.
    Causal,
    /// The entries at its own position and before.
    Positions { queries: IntTensor<B>, entries: IntTensor<B> },
    /// All entries, with those of a list before the others.
    List { keys: FloatTensor<B>, values: FloatTensor<B>, offsets: IntTensor<B>, width: usize },
    /// The same, but for slots of the list that are free: those at positions below zero.
    Slots {
        keys: FloatTensor<B>,
        values: FloatTensor<B>,
        offsets: IntTensor<B>,
        positions: IntTensor<B>,
    },
}

/// How many entries each head has, or how many follow its list.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum EntryCounts<B: Backend> {
    /// As many as the host says.
    Alike,
    /// As many as the device knows, and no more than the host says.
    Counted { of_heads: IntTensor<B> },
}

/// Output of the queries and, if they are wanted, their weights.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum DecodeTensors<B: Backend> {
    Plain { output: FloatTensor<B> },
    Weights { output: FloatTensor<B>, weights: FloatTensor<B> },
}
