//! An operand that may be absent.

use burn::{backend::Dispatch, tensor::Tensor};

use crate::common::backend::*;

/// A tensor that an operation may be called without.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Optional<B: Backend> {
    Nothing,
    Given { tensor: FloatTensor<B> },
}

impl<B: Backend> Optional<B> {
    pub(crate) fn into_option(self) -> Option<FloatTensor<B>> {
        match self {
            Self::Nothing => None,
            Self::Given { tensor } => Some(tensor),
        }
    }
}

impl Optional<Dispatch> {
    pub(crate) fn of<const D: usize>(tensor: Option<Tensor<D>>) -> Self {
        match tensor {
            None => Self::Nothing,
            Some(tensor) => Self::Given { tensor: tensor.into_dispatch() },
        }
    }
}
