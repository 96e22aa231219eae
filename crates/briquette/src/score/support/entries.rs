//! Entries counted from the first of their head: partitions begin there, whatever padding comes
//! before.

use burn::tensor::{Bool, DType, Int, Tensor};

use crate::{
    LayerView,
    ops::{Selection, constant_ints, gather_rows, iota},
};

/// Entries of a layer, counted from the first of each head.
pub(crate) struct FromFirst {
    dims: [usize; 3],
    /// Column of the first entry, `[batch, kv_heads, 1]`.
    first: Tensor<3, Int>,
}

impl FromFirst {
    pub(crate) fn of(view: &LayerView<'_>) -> Self {
        let dims = view.positions().dims();
        let first = per_head(dims, view.lengths.iter().map(|held| dims[2] - held), view);
        Self { dims, first }
    }

    /// Number of each column's entry, from 0 on; below zero at padding. `[batch, kv_heads,
    /// columns]`.
    pub(crate) fn numbers(&self) -> Tensor<3, Int> {
        iota(self.dims, &self.first.device()) - self.first.clone().expand(self.dims)
    }

    /// Takes `width` rows from entry `from` of each head on, out of `[batch, kv_heads, columns,
    /// channels]`. Rows behind the last entry are arbitrary.
    pub(crate) fn rows(&self, x: Tensor<4>, from: usize, width: usize) -> Tensor<4> {
        let [batch, heads, columns] = self.dims;
        let dims = [batch, heads, width];
        let columns = columns as i64 - 1;
        let indices = iota(dims, &x.device()) + self.first.clone().expand(dims) + from as i64;
        let indices = indices.clamp(0, columns);
        gather_rows(x, &Selection { indices, counts: vec![width; batch * heads] })
    }

    /// Moves numbers of entries, counted from entry `from` of each head on, `[batch, kv_heads,
    /// width]`, to the columns of the entries. Other columns are arbitrary.
    pub(crate) fn at_columns(&self, x: Tensor<3>, from: usize) -> Tensor<3> {
        let width = x.dims()[2] as i64;
        x.gather(2, (self.numbers() - from as i64).clamp(0, width - 1))
    }
}

/// Tensor of one whole number per head, rows first: `[batch, kv_heads, 1]`.
pub(crate) fn per_head(
    [batch, heads, _]: [usize; 3],
    numbers: impl Iterator<Item = usize>,
    view: &LayerView<'_>,
) -> Tensor<3, Int> {
    let numbers: Vec<i64> = numbers.map(|number| number as i64).collect();
    constant_ints("per head", numbers, [batch, heads, 1], &view.positions().device())
}

/// Rows of entries, f32, with zeros at padding.
pub(crate) fn at_entries(view: &LayerView<'_>, x: Tensor<4>) -> Tensor<4> {
    let x = x.cast(DType::F32);
    let columns = x.dims()[2];
    if view.lengths.iter().all(|&held| held == columns) {
        return x;
    }
    let padding = view.positions().clone().lower_scalar(0).unsqueeze_dim::<4>(3);
    let dims = x.dims();
    x.mask_fill(padding.expand(dims), 0.0)
}

/// Whether a column holds an entry that is no sink, `[batch, kv_heads, columns]`.
pub(crate) fn scored(view: &LayerView<'_>) -> Tensor<3, Bool> {
    FromFirst::of(view).numbers().greater_equal_scalar(view.protect.sinks as i64)
}
