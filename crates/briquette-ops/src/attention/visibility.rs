use burn::tensor::{Int, Tensor};

/// Visibility of entries to queries: a query sees the entries at its own position or before, except
/// padding.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Visibility {
    /// By order: nothing is padding, and the queries belong to the last entries: query `i` of `new`
    /// sees the first `entries − new + i + 1`. No position is read.
    Causal,
    /// By position.
    Positions {
        /// Position of each query, `[batch, 1, queries]`; −1 is padding.
        queries: Tensor<3, Int>,
        /// Position of each entry, `[batch, kv_heads, entries]`; −1 is padding.
        entries: Tensor<3, Int>,
    },
}

impl Visibility {
    /// Narrows the visibility to the last `count` queries.
    pub fn of_last(self, count: usize) -> Self {
        match self {
            Self::Causal => Self::Causal,
            Self::Positions { queries, entries } => {
                let all = queries.dims()[2];
                Self::Positions { queries: queries.narrow(2, all - count, count), entries }
            }
        }
    }
}
