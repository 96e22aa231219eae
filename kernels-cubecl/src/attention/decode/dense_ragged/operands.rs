//! Operands and results of the operation that are of several kinds.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

/// What a query sees.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum KvMask<B: Backend> {
    /// The entries up to its own.
    Causal,
    /// Those of its own position and before.
    Positions { queries: IntTensor<B>, entries: IntTensor<B> },
    /// Everything, a list before the other entries.
    List { keys: FloatTensor<B>, values: FloatTensor<B>, offsets: IntTensor<B>, width: usize },
}

/// What is returned.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum DecodeTensors<B: Backend> {
    Plain { output: FloatTensor<B> },
    Weights { output: FloatTensor<B>, weights: FloatTensor<B> },
}
