use burn::tensor::{DType, Tensor, activation::softmax};

/// Causal attention with grouped heads.
///
/// On a device that has the kernels, theirs, whose gradient computes the weights again; elsewhere
/// the plain one, whose graph keeps the weights of every layer.
///
/// # Shapes
/// - `queries`: `[batch, heads, tokens, head_dim]`, positions encoded
/// - `keys`, `values`: `[batch, kv_heads, tokens, head_dim]`
/// - returns the shape of the queries
pub(super) fn attention(
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
) -> anyhow::Result<Tensor<4>> {
    #[cfg(feature = "kernels")]
    if briquette_kernels::supports(&queries.device().without_autodiff()) {
        use briquette_ops::{AttentionInput, Visibility};
        let scale = 1.0 / (queries.dims()[3] as f64).sqrt();
        let input = AttentionInput {
            queries,
            keys,
            values,
            visibility: Visibility::Causal,
            scale,
            column_sums: false,
            column_squares: false,
        };
        return Ok(briquette_kernels::attention(&input)?.output);
    }
    Ok(plain(queries, keys, values))
}

/// The textbook's, softmax in f32.
fn plain(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    let [batch, heads, tokens, head_dim] = queries.dims();
    let kv_heads = keys.dims()[1];
    let group = heads / kv_heads;
    let dtype = queries.dtype();
    // The queries of a group below each other: one product for all that read the same keys.
    let grouped = queries.reshape([batch, kv_heads, group * tokens, head_dim]);
    let scale = 1.0 / (head_dim as f64).sqrt();
    let scores = grouped.matmul(keys.swap_dims(2, 3)).cast(DType::F32) * scale;
    let scores = scores.reshape([batch, heads, tokens, tokens]);
    let hidden = Tensor::<2>::ones([tokens, tokens], &scores.device()).triu(1).bool();
    let scores =
        scores.mask_fill(hidden.unsqueeze::<4>().expand([batch, heads, tokens, tokens]), -1e30);
    let weights = softmax(scores, 3).cast(dtype);
    let weights = weights.reshape([batch, kv_heads, group * tokens, tokens]);
    weights.matmul(values).reshape([batch, heads, tokens, head_dim])
}
