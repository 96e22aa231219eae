//! Tensors of decode attention that belong together, and in kernels.

use cubecl::prelude::*;

use crate::common::backend::*;

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

/// Keys and values of rows in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct KeyValues<K: CubePrimitive> {
    pub(crate) keys: OwnedTensor<K>,
    pub(crate) values: OwnedTensor<K>,
}

/// [`Clusters`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct ClusterArgs<K: CubePrimitive, I: CubePrimitive> {
    /// Directions and values.
    pub(crate) rows: KeyValues<K>,
    pub(crate) tokens_by_cluster: OwnedTensor<I>,
    pub(crate) cluster_of_token: OwnedTensor<I>,
    pub(crate) norms: OwnedTensor<f32>,
    pub(crate) offsets: OwnedTensor<I>,
}

/// [`Rotary`] in a kernel.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct RotaryArgs<T: CubePrimitive, I: CubePrimitive> {
    pub(crate) cosines: OwnedTensor<T>,
    pub(crate) sines: OwnedTensor<T>,
    pub(crate) positions: OwnedTensor<I>,
}

/// Keys and values of rows as an argument of a kernel.
pub(crate) fn key_values<K: CubePrimitive>(
    keys: CubeTensor,
    values: CubeTensor,
) -> KeyValuesLaunch<K> {
    KeyValuesLaunch::new(keys.into_tensor_arg(), values.into_tensor_arg())
}

impl Clusters<CubeBackend> {
    /// These as an argument of a kernel.
    pub(crate) fn into_arg<K: CubePrimitive, I: CubePrimitive>(self) -> ClusterArgsLaunch<K, I> {
        ClusterArgsLaunch::new(
            key_values(self.directions, self.values),
            self.tokens_by_cluster.into_tensor_arg(),
            self.cluster_of_token.into_tensor_arg(),
            self.norms.into_tensor_arg(),
            self.offsets.into_tensor_arg(),
        )
    }
}
