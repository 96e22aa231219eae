use burn::tensor::Tensor;

use crate::{
    entries::{group_mean, outside_window},
    select::Pool,
};

/// Attention that tokens received. Statistics are f32, `[batch, n · kv_heads, columns]`, zero at
/// padding.
#[derive(Clone, Debug)]
pub struct GlobalLocalInput {
    /// Attention of all queries.
    pub sums: Tensor<3>,
    /// Attention of the queries of the window before this one.
    pub past: Tensor<3>,
    /// Attention of the queries of this window so far.
    pub current: Tensor<3>,
    /// Heads of the scores.
    pub kv_heads: usize,
    /// Number of last columns whose score is zero.
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
    // Tokens without attention have none from the window.
    let level = total(&local) / (total(&global) + f32::MIN_POSITIVE);
    let scores = (global * level).max_pair(local);
    let scores = outside_window(scores, window);
    match pool {
        None => scores,
        Some(pool) => pool.apply(scores),
    }
}
