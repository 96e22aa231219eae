//! Batch rows: dimension 0 of tensors, and equal parts of lists.

use burn::tensor::{Int, Tensor, kind::Basic};

use crate::ops::constant_ints;

/// Returns batch rows of `x` in this order; all rows in their own order share its buffer.
pub(crate) fn select_rows<const D: usize, K: Basic>(
    x: Tensor<D, K>,
    rows: &[usize],
) -> Tensor<D, K> {
    if rows.iter().copied().eq(0..x.dims()[0]) {
        return x;
    }
    let list = rows.iter().map(|&row| row as i64).collect();
    let index = constant_ints("rows", list, [rows.len()], &x.device());
    x.select(0, index)
}

/// Returns the parts of a list of `batch` rows that belong to these rows.
pub(crate) fn select_list<T: Clone>(list: &[T], batch: usize, rows: &[usize]) -> Vec<T> {
    let part = list.len() / batch;
    rows.iter().flat_map(|&row| list[row * part..][..part].to_vec()).collect()
}

/// Appends the batch rows of `more`, in the type of `x`.
pub(crate) fn append_rows<const D: usize>(x: Tensor<D>, more: Tensor<D>) -> Tensor<D> {
    let more = more.cast(x.dtype());
    Tensor::cat(vec![x, more], 0)
}

/// Appends the batch rows of `more`, in the type of `x`.
pub(crate) fn append_int_rows<const D: usize>(
    x: Tensor<D, Int>,
    more: Tensor<D, Int>,
) -> Tensor<D, Int> {
    let more = more.cast(x.dtype());
    Tensor::cat(vec![x, more], 0)
}
