// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use briquette_ops::SparseMap;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use crate::attention::prefill::outputs;
use crate::attention::prefill::{Mask, launch};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SparseAttentionBackend: Backend {
    /// See [`super::sparse_attention`].
    #[fusion(meta = |queries, _keys, _values, _of_queries, _of_entries, _lists, _bits, _map, _scale| outputs(queries))]
    fn sparse_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        lists: IntTensor<Self>,
        bits: IntTensor<Self>,
        map: SparseMap,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl SparseAttentionBackend for CubeBackend {
    fn sparse_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        lists: IntTensor<Self>,
        bits: IntTensor<Self>,
        map: SparseMap,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let positions = [query_positions, entry_positions];
        launch([queries, keys, values], Mask::Pattern { positions, lists, bits, map }, scale)
    }
}
