use std::ops::Range;

use burn::tensor::{Bool, Int, Tensor};

use super::local_window::Window;
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

/// Returns the entries that each query sees, `[batch, kv_heads, queries, entries]`: none that is
/// padding, is later, or lies before the query's `window`. Positions are `[batch, 1, queries]` and
/// `[batch, kv_heads, entries]`, −1 at padding.
pub fn seen_entries(
    queries: &Tensor<3, Int>,
    entries: &Tensor<3, Int>,
    window: Option<Window>,
) -> Tensor<4, Bool> {
    let [batch, heads, columns] = entries.dims();
    let shape = [batch, heads, queries.dims()[2], columns];
    let queries = queries.clone().unsqueeze_dim::<4>(3);
    let entries = entries.clone().unsqueeze_dim::<4>(2);
    let written = entries.clone().greater_equal_scalar(0).expand(shape);
    let entries = entries.expand(shape);
    let seen = entries.clone().lower_equal(queries.clone().expand(shape)).bool_and(written);
    let Some(window) = window else { return seen };
    let size = window.size().clamp(1, i32::MAX as usize) as i64;
    let first = match window {
        Window::Sliding(_) => queries.sub_scalar(size - 1),
        Window::Chunk(_) => queries.clone() - queries.remainder_scalar(size),
    };
    seen.bool_and(entries.greater_equal(first.expand(shape)))
}
