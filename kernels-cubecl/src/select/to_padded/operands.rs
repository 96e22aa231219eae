//! Operands of the operation that are of several kinds.

use burn::backend::{Backend, ExtensionType, tensor::IntTensor};

/// Where the lists of heads are.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Lists<B: Backend> {
    /// All are as long as the rectangle is wide.
    Alike,
    Differ {
        offsets: IntTensor<B>,
    },
}
