use std::ops::Range;

use burn::tensor::{Int, Tensor};

use crate::constant::counting;

/// Visibility of entries to queries: a query sees the entries at its own position or before, except
/// padding.
// A tensor is large on the stack, but these are few.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Visibility {
    /// By order: nothing is padding, and the queries belong to the last entries: query `i` of `new`
    /// sees the first `entries − new + i + 1`. Where [`Scoring`](crate::Scoring) reads positions,
    /// the position of an entry is its column.
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
    /// Returns the visibility by position: columns of [`Causal`](Self::Causal) are positions.
    pub(super) fn by_position(self, queries: &Tensor<4>, keys: &Tensor<4>) -> Self {
        let Self::Causal = self else { return self };
        let [batch, _, new, _] = queries.dims();
        let [_, kv_heads, entries, _] = keys.dims();
        let device = queries.device();
        let places = |range: Range<usize>, heads: usize| -> Tensor<3, Int> {
            let count = range.len();
            counting(range, &device).reshape([1, 1, count]).expand([batch, heads, count])
        };
        let old = entries.saturating_sub(new);
        Self::Positions {
            queries: places(old..old + new, 1),
            entries: places(0..entries, kv_heads),
        }
    }

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
