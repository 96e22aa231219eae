//! Numbers of columns, and columns of heads that begin at places of their own.

use burn::tensor::{Device, Int, Tensor, kind::Basic};

use crate::constant::{constant_ints, counting};

/// 0, 1, 2 … in every row.
pub fn counted(dims: [usize; 3], device: &Device) -> Tensor<3, Int> {
    let place = counting(0..dims[2], device);
    place.reshape([1, 1, dims[2]]).expand(dims)
}

/// Every number plus one that is its head's, rows first; not below zero where heads differ, since fillers may be.
pub fn moved(x: Tensor<3, Int>, by: &[i64]) -> Tensor<3, Int> {
    let first = by.first().copied().unwrap_or(0);
    if by.iter().all(|&by| by == first) {
        return if first == 0 { x } else { x + first };
    }
    let dims = x.dims();
    let by = constant_ints("moved", by.to_vec(), [dims[0], dims[1], 1], &x.device());
    (x + by.expand(dims)).clamp_min(0)
}

/// `width` columns of each head from one on that is its own, rows first. What is read before or behind those there are
/// does not matter.
pub fn aligned<K: Basic>(x: Tensor<3, K>, from: &[i64], width: usize) -> Tensor<3, K> {
    let [batch, heads, columns] = x.dims();
    match same(from, width, columns) {
        Some(0) if width == columns => x,
        Some(first) => x.narrow(2, first, width),
        None => {
            let places = places([batch, heads, width], from, columns, &x.device());
            x.gather(2, places)
        }
    }
}

/// Where all heads begin, if it is the same and `width` columns are there.
pub(super) fn same(from: &[i64], width: usize, columns: usize) -> Option<usize> {
    let first = usize::try_from(*from.first()?).ok()?;
    let all = from.iter().all(|&from| from == first as i64);
    (all && first + width <= columns).then_some(first)
}

/// The columns of each head from its own first on, within those there are.
pub(super) fn places(
    dims: [usize; 3],
    from: &[i64],
    columns: usize,
    device: &Device,
) -> Tensor<3, Int> {
    moved(counted(dims, device), from).clamp(0, columns as i64 - 1)
}
