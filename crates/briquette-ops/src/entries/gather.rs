use burn::tensor::{Int, Tensor};

use super::{
    columns::{places, same},
    layer::Entries,
    selection::Selection,
};
use crate::constant::constant_ints;

/// Gathers the selected rows of `x`: `[batch, kv_heads, entries, channels]` becomes
/// `[batch, kv_heads, kept, channels]`.
///
/// Whole rows are picked from one long list of them. Burn's `gather` needs an index for every
/// number: on a CPU making those took most of a decoded token's time.
pub fn gather_rows(x: Tensor<4>, selection: &Selection) -> Tensor<4> {
    let [batch, heads, entries, channels] = x.dims();
    let kept = selection.width();
    let device = x.device();
    let starts = (0..batch * heads).map(|head| (head * entries) as i64).collect();
    let starts = constant_ints("first rows", starts, [batch, heads, 1], &device);
    let starts = starts.expand([batch, heads, kept]);
    let rows = (selection.indices.clone() + starts).reshape([batch * heads * kept]);
    x.reshape([batch * heads * entries, channels])
        .select(0, rows)
        .reshape([batch, heads, kept, channels])
}

/// Gathers the selected numbers of `x`, `[n · batch, heads, entries]`, to
/// `[n · batch, heads, kept]`, zero at padding. `heads` is a multiple of the kv heads: query heads
/// that share a kv head stand together, and each `batch` rows are selected alike, as in
/// [`AttentionStatistics`](super::AttentionStatistics).
pub fn gather_scalars(x: Tensor<3>, selection: &Selection) -> Tensor<3> {
    let [batch, kv_heads, kept] = selection.indices.dims();
    let [rows, heads, _] = x.dims();
    let (kinds, group) = (rows / batch, heads / kv_heads);
    let of_heads = |tensor: Tensor<3, Int>| {
        let tensor: Tensor<5, Int> = tensor.reshape([1, batch, kv_heads, 1, kept]);
        tensor.expand([kinds, batch, kv_heads, group, kept]).reshape([rows, heads, kept])
    };
    let indices = of_heads(selection.indices.clone());
    let picked = x.gather(2, indices);
    match selection.padding_mask() {
        None => picked,
        // Scorers pool over neighbours: padding counts nothing.
        Some(padding) => {
            let padding = of_heads(padding.int()).bool();
            picked.mask_fill(padding, 0.0)
        }
    }
}

/// Gathers the positions of the selected entries, −1 at padding: `[batch, kv_heads, entries]`
/// becomes `[batch, kv_heads, kept]`.
pub fn gather_positions(positions: Tensor<3, Int>, selection: &Selection) -> Tensor<3, Int> {
    let kept = positions.gather(2, selection.indices.clone());
    match selection.padding_mask() {
        None => kept,
        Some(padding) => kept.mask_fill(padding, -1),
    }
}

/// Slices `width` rows of each head of `x`, `[batch, kv_heads, rows, channels]`, from a start per
/// batch row and kv head, batch rows first. Values read outside of the rows do not matter.
pub fn slice_rows_per_head(x: Tensor<4>, from: &[i64], width: usize) -> Tensor<4> {
    let [batch, heads, rows, _] = x.dims();
    match same(from, width, rows) {
        Some(0) if width == rows => x,
        Some(first) => x.narrow(2, first, width),
        None => {
            let indices = places([batch, heads, width], from, rows, &x.device());
            gather_rows(x, &Selection { indices, counts: vec![width; batch * heads] })
        }
    }
}

/// Gathers the selected entries: keys, values, positions and statistics. Each entry of the result
/// has a row of its own. The reference of [`SelectOps::compact`](crate::SelectOps::compact).
pub fn gather_entries(entries: Entries, selection: &Selection) -> Entries {
    Entries {
        keys: gather_rows(entries.keys, selection),
        values: gather_rows(entries.values, selection),
        positions: gather_positions(entries.positions, selection),
        statistics: entries.statistics.map(|statistics| gather_scalars(statistics, selection)),
        clustering: None,
    }
}
