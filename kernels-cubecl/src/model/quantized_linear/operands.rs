//! Tensors of the operation that belong together.

use briquette_ops::QuantizedMatrix;
use burn::backend::Dispatch;

use crate::common::backend::*;

/// Numbers of a quantized matrix, as in [`QuantizedMatrix`].
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) struct Weights<B: Backend> {
    pub(super) words: IntTensor<B>,
    pub(super) scales: FloatTensor<B>,
    #[extension_type]
    pub(super) minima: Minima<B>,
}

/// Minima of groups, and factors of blocks.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(super) enum Minima<B: Backend> {
    Nothing,
    Factors { factors: IntTensor<B> },
    OfGroups { mins: FloatTensor<B> },
    WithFactors { mins: FloatTensor<B>, factors: IntTensor<B> },
}

impl Weights<Dispatch> {
    pub(super) fn of(matrix: &QuantizedMatrix) -> Self {
        let minima = match (matrix.mins(), matrix.factors()) {
            (Some(mins), Some(factors)) => Minima::WithFactors {
                mins: mins.clone().into_dispatch(),
                factors: factors.clone().into_dispatch(),
            },
            (Some(mins), None) => Minima::OfGroups { mins: mins.clone().into_dispatch() },
            (None, Some(factors)) => Minima::Factors { factors: factors.clone().into_dispatch() },
            (None, None) => Minima::Nothing,
        };
        Self {
            words: matrix.words().clone().into_dispatch(),
            scales: matrix.scales().clone().into_dispatch(),
            minima,
        }
    }
}
