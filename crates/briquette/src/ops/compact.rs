use burn::tensor::{Int, Tensor};

use super::Selection;

/// Whole rows are picked from one long list of them. A `gather` would want an index for every number: on a CPU
/// making those took most of a decoded token's time.
pub(super) fn rows(x: Tensor<4>, selection: &Selection) -> Tensor<4> {
    let [batch, heads, entries, channels] = x.dims();
    let kept = selection.width();
    let device = x.device();
    let starts =
        Tensor::<1, Int>::arange_step(0..(batch * heads * entries) as i64, entries, &device);
    let starts = starts.reshape([batch, heads, 1]).expand([batch, heads, kept]);
    let rows = (selection.indices.clone() + starts).reshape([batch * heads * kept]);
    x.reshape([batch * heads * entries, channels])
        .select(0, rows)
        .reshape([batch, heads, kept, channels])
}

pub(super) fn scalars(x: Tensor<3>, selection: &Selection) -> Tensor<3> {
    let [batch, kv_heads, kept] = selection.indices.dims();
    let heads = x.dims()[1];
    let indices = selection
        .indices
        .clone()
        .unsqueeze_dim::<4>(2)
        .expand([batch, kv_heads, heads / kv_heads, kept])
        .reshape([batch, heads, kept]);
    x.gather(2, indices)
}

pub(super) fn positions(positions: Tensor<3, Int>, selection: &Selection) -> Tensor<3, Int> {
    let heads = positions.dims()[1];
    let width = selection.width();
    let mut kept = positions.gather(2, selection.indices.clone());
    for (row, &count) in selection.counts.iter().enumerate() {
        if count < width {
            kept = kept.slice_fill([row..row + 1, 0..heads, 0..width - count], -1);
        }
    }
    kept
}
