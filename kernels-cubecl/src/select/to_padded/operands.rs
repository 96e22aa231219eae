//! The operand that may be absent.

use burn::backend::{Backend, ExtensionType, tensor::IntTensor};

/// Bounds of the lists of heads.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Lists<B: Backend> {
    /// All are as long as the rectangle is wide.
    Alike,
    Differ {
        offsets: IntTensor<B>,
    },
}
