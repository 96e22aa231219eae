use briquette_ops::Visibility;
use burn::backend::Dispatch;

use crate::common::backend::*;

/// Entries that each query sees.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Visible<B: Backend> {
    /// The entries up to that of the query.
    Causal,
    /// Entries at the position of the query or before.
    Positions { queries: IntTensor<B>, entries: IntTensor<B> },
}

impl From<Visibility> for Visible<Dispatch> {
    fn from(visibility: Visibility) -> Self {
        match visibility {
            Visibility::Causal => Self::Causal,
            Visibility::Positions { queries, entries } => Self::Positions {
                queries: queries.into_dispatch(),
                entries: entries.into_dispatch(),
            },
        }
    }
}

impl Visible<CubeBackend> {
    /// Whether there are positions, and those of queries and of entries: where there are none,
    /// tensors of this type that nothing looks at, on the device of `beside`.
    pub(crate) fn positions(self, beside: &CubeTensor, dtype: DType) -> (bool, [CubeTensor; 2]) {
        match self {
            Self::Positions { queries, entries } => (true, [queries, entries]),
            Self::Causal => {
                let nothing = empty(beside, [1, 1, 1], dtype);
                (false, [nothing.clone(), nothing])
            }
        }
    }
}
