use burn::tensor::{Tensor, s};

/// Averages scores over the query heads that share a kv head, `[batch, heads, entries]` to
/// `[batch, kv_heads, entries]`.
pub fn group_mean(scores: Tensor<3>, kv_heads: usize) -> Tensor<3> {
    let [batch, heads, entries] = scores.dims();
    let group = heads / kv_heads;
    if group == 1 {
        return scores;
    }
    let scores = scores.reshape([batch, kv_heads, group, entries]).mean_dim(2);
    scores.reshape([batch, kv_heads, entries])
}

/// Sets the scores of the last `window` entries to zero, `[batch, heads, entries]`: these entries
/// are kept anyway, and zeros pool like the padding beyond an end.
pub fn outside_window(scores: Tensor<3>, window: usize) -> Tensor<3> {
    let outside = scores.dims()[2].saturating_sub(window);
    scores.slice_fill(s![.., .., outside..], 0.0)
}
