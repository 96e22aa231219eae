use burn::tensor::{Int, Tensor};

/// Which entries a query sees: those written at its own position or before, padding excepted.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Visibility {
    /// Nothing is padding, and the queries belong to the last entries in order: query `i` of `new`
    /// sees the first `entries − new + i + 1`. No position is read.
    Causal,
    /// By position.
    Positions {
        /// The position of each query, `[batch, 1, queries]`; −1 is padding.
        queries: Tensor<3, Int>,
        /// The position of each entry, `[batch, kv_heads, entries]`; −1 is padding.
        entries: Tensor<3, Int>,
    },
}

impl Visibility {
    /// The same for the last so many of the queries.
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
