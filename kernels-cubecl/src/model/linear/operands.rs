//! Operands of the operation that are of several kinds.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// What is added to every row of the product.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Added<B: Backend> {
    Nothing,
    Bias { bias: FloatTensor<B> },
}
