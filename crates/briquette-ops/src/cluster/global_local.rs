use burn::tensor::Tensor;

use crate::{
    entries::{group_mean, outside_window},
    select::Pool,
};

/// What queries gave to columns. Statistics are f32, `[batch, n · kv_heads, columns]`, zero where nothing is held.
#[derive(Clone, Debug)]
pub struct GlobalLocalInput {
    /// What all queries gave to each column.
    pub sums: Tensor<3>,
    /// What the queries of the window before this one gave to it.
    pub past: Tensor<3>,
    /// What those of this window gave to it so far.
    pub current: Tensor<3>,
    /// Heads of the scores.
    pub kv_heads: usize,
    /// The last so many columns have the score zero.
    pub window: usize,
    /// Pooling, if any.
    pub pool: Option<Pool>,
}

pub(super) fn global_local(input: GlobalLocalInput) -> Tensor<3> {
    let GlobalLocalInput { sums, past, current, kv_heads, window, pool } = input;
    let global = group_mean(sums, kv_heads);
    let local = group_mean(past + current, kv_heads);
    let outside = global.dims()[2].saturating_sub(window);
    if outside == 0 {
        return local.zeros_like();
    }
    // Padding has received nothing, so sums over all columns are sums over the context.
    let total = |x: &Tensor<3>| x.clone().sum_dim(2);
    // What has received nothing has received nothing from the window.
    let level = total(&local) / (total(&global) + f32::MIN_POSITIVE);
    let scores = (global * level).max_pair(local);
    let scores = outside_window(scores, window);
    match pool {
        None => scores,
        Some(pool) => pool.apply(scores),
    }
}
