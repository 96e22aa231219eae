use burn::tensor::{Tensor, s};

use super::GlobalLocalInput;
use crate::score::{Pool, PoolKind};

pub(super) fn global_local(input: GlobalLocalInput) -> Tensor<3> {
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    let [batch, heads, columns] = sums.dims();
    let group_mean = |track: Tensor<3>| -> Tensor<3> {
        let of_groups = track.reshape([batch, kv_heads, heads / kv_heads, columns]);
        of_groups.mean_dim(2).reshape([batch, kv_heads, columns])
    };
    let global = group_mean(sums);
    let local = group_mean(past + current);
    let outside = columns.saturating_sub(window);
    if outside == 0 {
        return local.zeros_like();
    }
    // Padding has received nothing, so sums over all columns are sums over the entries.
    let total = |x: &Tensor<3>| x.clone().narrow(2, 0, outside).sum_dim(2);
    // What has received nothing has received nothing from the window.
    let level = total(&local) / (total(&global) + f32::MIN_POSITIVE);
    let scores = (global * level).max_pair(local);
    // Columns of the window are kept anyway, and in their place zeros pool like the padding beyond an end.
    let scores = scores.slice_fill(s![.., .., outside..], 0.0);
    match pool {
        None => scores,
        Some(pool) => pool.apply(scores),
    }
}

/// Columns pooled over, and whether the highest is taken.
pub(super) fn pooling(pool: Option<Pool>) -> (usize, bool) {
    pool.map_or((1, false), |pool| (pool.kernel, pool.kind == PoolKind::Max))
}
