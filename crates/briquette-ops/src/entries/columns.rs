//! Column indices, and slices of columns that start at another place in each head.

use burn::tensor::{Device, FloatDType, Int, Tensor, kind::Basic};

use crate::constant::{constant_ints, counting};

/// Returns 0, 1, 2 … in every row.
pub fn iota(dims: [usize; 3], device: &Device) -> Tensor<3, Int> {
    let place = counting(0..dims[2], device);
    place.reshape([1, 1, dims[2]]).expand(dims)
}

/// The columns that `argsort` or `argmin` of integers found, as integers of the device.
///
/// On `flex` those are 64 bits wide, whatever was sorted. A client of Burn's `remote` does not know
/// that, and takes a cast of integers for none: they go by way of f32.
pub(crate) fn found_columns(columns: Tensor<3, Int>) -> Tensor<3, Int> {
    let dtype = columns.device().settings().int_dtype;
    columns.cast(FloatDType::F32).cast(dtype)
}

/// Adds one number per batch row and kv head, rows first, to all numbers of the head. Not below
/// zero where heads differ, since padding may be.
pub fn offset_per_head(x: Tensor<3, Int>, by: &[i64]) -> Tensor<3, Int> {
    let first = by.first().copied().unwrap_or(0);
    if by.iter().all(|&by| by == first) {
        return if first == 0 { x } else { x + first };
    }
    let dims = x.dims();
    let by = constant_ints("moved", by.to_vec(), [dims[0], dims[1], 1], &x.device());
    (x + by.expand(dims)).clamp_min(0)
}

/// Slices `width` columns of each head, from a start per batch row and kv head, rows first. Values
/// read outside of the columns do not matter.
pub fn slice_per_head<K: Basic>(x: Tensor<3, K>, from: &[i64], width: usize) -> Tensor<3, K> {
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

/// Returns the start of all heads, if it is the same and `width` columns are there.
pub(super) fn same(from: &[i64], width: usize, columns: usize) -> Option<usize> {
    let first = usize::try_from(*from.first()?).ok()?;
    let all = from.iter().all(|&from| from == first as i64);
    (all && first + width <= columns).then_some(first)
}

/// Returns the columns of each head from its own start on, clamped to those that are there.
pub(super) fn places(
    dims: [usize; 3],
    from: &[i64],
    columns: usize,
    device: &Device,
) -> Tensor<3, Int> {
    offset_per_head(iota(dims, device), from).clamp(0, columns as i64 - 1)
}
