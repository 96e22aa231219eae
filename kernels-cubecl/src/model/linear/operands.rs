//! The operand that may be absent.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// Bias of the product, added to every row.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(in crate::model) enum Added<B: Backend> {
    Nothing,
    Bias { bias: FloatTensor<B> },
}
