//! The operand that may be absent.

use burn::{
    backend::{Backend, Dispatch, ExtensionType, tensor::FloatTensor},
    tensor::Tensor,
};

/// Bias of the product, added to every row.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(in crate::model) enum Added<B: Backend> {
    Nothing,
    Bias { bias: FloatTensor<B> },
}

impl<B: Backend> Added<B> {
    pub(in crate::model) fn into_bias(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Nothing => None,
            Self::Bias { bias } => Some(bias),
        }
    }
}

impl Added<Dispatch> {
    pub(in crate::model) fn of(bias: Option<Tensor<1>>) -> Self {
        match bias {
            Some(bias) => Self::Bias { bias: bias.into_dispatch() },
            None => Self::Nothing,
        }
    }
}
