//! Operands of the operation that are of several kinds.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// What is added to rows before they are normalised.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Residual<B: Backend> {
    Nothing,
    Rows { rows: FloatTensor<B> },
}
