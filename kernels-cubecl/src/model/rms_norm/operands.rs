//! The operand that may be absent.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// Rows that are added before the sum is normalised.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Residual<B: Backend> {
    Nothing,
    Rows { rows: FloatTensor<B> },
}
