//! Operands of the operation that are of several kinds.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

/// How many columns of each head there are.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Held<B: Backend> {
    /// As many of all.
    Alike {
        count: usize,
    },
    Differ {
        counts: IntTensor<B>,
    },
}

/// The threshold there was.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Before<B: Backend> {
    Nothing,
    Threshold { of_rows: FloatTensor<B> },
}
