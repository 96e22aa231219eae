use burn::tensor::Tensor;

/// The mean over the query heads that share a kv head; one head a kv head is left alone.
pub(crate) fn group_mean(scores: Tensor<3>, kv_heads: usize) -> Tensor<3> {
    let [batch, heads, entries] = scores.dims();
    let group = heads / kv_heads;
    if group == 1 {
        return scores;
    }
    let scores = scores.reshape([batch, kv_heads, group, entries]).mean_dim(2);
    scores.reshape([batch, kv_heads, entries])
}
