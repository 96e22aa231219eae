use burn::tensor::{Int, Tensor};

use crate::ops::{Ops, Selection};

/// The entries of a layer, one column a token.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entries {
    /// `[batch, kv_heads, entries, head_dim]`, in the cache's type.
    pub keys: Tensor<4>,
    /// `[batch, kv_heads, entries, head_dim]`, in the cache's type.
    pub values: Tensor<4>,
    /// The position each was written at, ascending in a row, `[batch, kv_heads, entries]`; −1 is padding.
    pub positions: Tensor<3, Int>,
    /// The weight each has received, `[batch, query_heads, entries]`, f32, if the scorer observes it.
    pub column_sums: Option<Tensor<3>>,
}

impl Entries {
    /// Columns.
    pub fn columns(&self) -> usize {
        self.positions.dims()[2]
    }

    /// These entries and behind them those of `new`, which have received no weight yet.
    pub(crate) fn followed_by(self, new: Self) -> Self {
        let columns = new.columns();
        Self {
            keys: Tensor::cat(vec![self.keys, new.keys], 2),
            values: Tensor::cat(vec![self.values, new.values], 2),
            positions: Tensor::cat(vec![self.positions, new.positions], 2),
            column_sums: self.column_sums.map(|sums| {
                let [batch, heads, _] = sums.dims();
                let none = Tensor::zeros([batch, heads, columns], (&sums.device(), sums.dtype()));
                Tensor::cat(vec![sums, none], 2)
            }),
        }
    }

    /// The selected entries.
    pub fn select(self, selection: &Selection, ops: &dyn Ops) -> Self {
        Self {
            keys: ops.compact(self.keys, selection),
            values: ops.compact(self.values, selection),
            positions: ops.compact_positions(self.positions, selection),
            column_sums: self.column_sums.map(|sums| ops.compact_scalars(sums, selection)),
        }
    }
}
