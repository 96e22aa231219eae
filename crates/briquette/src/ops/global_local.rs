use burn::tensor::Tensor;

use super::GlobalLocalInput;
use crate::score::{Pool, PoolKind, group_mean, outside_window};

pub(super) fn global_local(input: GlobalLocalInput) -> Tensor<3> {
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    let global = group_mean(sums, kv_heads);
    let local = group_mean(past + current, kv_heads);
    let outside = global.dims()[2].saturating_sub(window);
    if outside == 0 {
        return local.zeros_like();
    }
    // Padding has received nothing, so sums over all columns are sums over the entries.
    let total = |x: &Tensor<3>| x.clone().narrow(2, 0, outside).sum_dim(2);
    // What has received nothing has received nothing from the window.
    let level = total(&local) / (total(&global) + f32::MIN_POSITIVE);
    let scores = (global * level).max_pair(local);
    let scores = outside_window(scores, window);
    match pool {
        None => scores,
        Some(pool) => pool.apply(scores),
    }
}

/// Columns pooled over, and whether the highest is taken.
pub(super) fn pooling(pool: Option<Pool>) -> (usize, bool) {
    pool.map_or((1, false), |pool| (pool.kernel, pool.kind == PoolKind::Max))
}
