//! Tensors of decode attention that belong together.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

/// Clusters of tokens that share a direction of keys and a value.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Clusters<B: Backend> {
    /// `[clusters, head_dim]`
    pub(crate) directions: FloatTensor<B>,
    /// `[clusters, head_dim]`
    pub(crate) values: FloatTensor<B>,
    /// Columns in the order of their clusters, `[batch, kv_heads, width]`.
    pub(crate) tokens_by_cluster: IntTensor<B>,
    /// Cluster index of each column within its head, `[batch, kv_heads, width]`.
    pub(crate) cluster_of_token: IntTensor<B>,
    /// Factor of the direction of each column's key, f32, `[batch, kv_heads, width]`.
    pub(crate) norms: FloatTensor<B>,
    /// Start of the clusters of each batch row and kv head, and behind the last their end,
    /// `[batch · kv_heads + 1]`.
    pub(crate) offsets: IntTensor<B>,
}

/// Rotary encoding of keys as they are read.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Rotary<B: Backend> {
    /// Keys are taken as they lie.
    Nothing,
    Tables {
        /// `[positions, head_dim / 2]`
        cosines: FloatTensor<B>,
        /// `[positions, head_dim / 2]`
        sines: FloatTensor<B>,
        /// Position of each column, `[batch, kv_heads or 1, columns]`.
        positions: IntTensor<B>,
    },
}

/// Keys and values behind those of a compressed layout, one row per token.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct TailTensors<B: Backend> {
    /// `[batch, kv_heads, capacity, head_dim]`
    pub(crate) keys: FloatTensor<B>,
    /// `[batch, kv_heads, capacity, head_dim]`
    pub(crate) values: FloatTensor<B>,
    /// Number of rows that are entries: the first.
    pub(crate) entries: usize,
}
