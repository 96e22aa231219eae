//! Columns of entries: dimension 2 of all their tensors.

use burn::tensor::{Tensor, kind::Basic};

use crate::ops::Entries;

/// The most entries of a head.
pub(crate) fn longest(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

/// Returns `x` with `columns` columns of zeros before it.
pub(crate) fn behind_zeros<const D: usize>(x: Tensor<D>, columns: usize) -> Tensor<D> {
    let mut dims = x.dims();
    dims[2] = columns;
    let zeros = Tensor::zeros(dims, (&x.device(), x.dtype()));
    Tensor::cat(vec![zeros, x], 2)
}

/// Returns the last `columns` columns of `x`, behind columns of `filler` if it has fewer.
pub(crate) fn right_aligned<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    columns: usize,
    filler: i64,
) -> Tensor<D, K> {
    let mut dims = x.dims();
    let width = dims[2];
    if columns == width {
        return x;
    }
    if columns < width {
        return x.narrow(2, width - columns, columns);
    }
    dims[2] = columns - width;
    let missing = Tensor::full(dims, filler, (&x.device(), x.dtype()));
    Tensor::cat(vec![missing, x], 2)
}

/// Returns the last `columns` columns of entries that have a row each, behind padding if there are
/// fewer.
pub(crate) fn right_aligned_entries(entries: Entries, columns: usize) -> Entries {
    Entries {
        keys: right_aligned(entries.keys, columns, 0),
        values: right_aligned(entries.values, columns, 0),
        positions: right_aligned(entries.positions, columns, -1),
        statistics: entries.statistics.map(|statistic| right_aligned(statistic, columns, 0)),
        clustering: entries.clustering,
    }
}
