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
    let of_heads = |tensor: Tensor<4, Int>| {
        tensor.expand([batch, kv_heads, heads / kv_heads, kept]).reshape([batch, heads, kept])
    };
    let indices = of_heads(selection.indices.clone().unsqueeze_dim::<4>(2));
    let picked = x.gather(2, indices);
    match selection.fillers() {
        None => picked,
        // Scorers pool over neighbours: a filler counts nothing.
        Some(fillers) => {
            let fillers = of_heads(fillers.int().unsqueeze_dim::<4>(2)).bool();
            picked.mask_fill(fillers, 0.0)
        }
    }
}

pub(super) fn positions(positions: Tensor<3, Int>, selection: &Selection) -> Tensor<3, Int> {
    let kept = positions.gather(2, selection.indices.clone());
    match selection.fillers() {
        None => kept,
        Some(fillers) => kept.mask_fill(fillers, -1),
    }
}
