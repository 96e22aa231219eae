use burn::tensor::Tensor;

/// Keys and values behind a body, in buffers with room for more: `[batch, kv_heads, capacity, head_dim]`.
pub(super) struct Tail {
    pub(super) keys: Tensor<4>,
    pub(super) values: Tensor<4>,
    /// Rows of the buffers that are entries.
    pub(super) columns: usize,
}
