use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::{Mask, launch};

/// Attention of a prompt as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AttentionBackend: Backend {
    /// See [`super::attention`].
    #[fusion(meta = |queries, _keys, _values, _scale| outputs(queries))]
    fn attention_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::attention`].
    #[fusion(meta = |queries, _keys, _values, _of_queries, _of_entries, _scale| outputs(queries))]
    fn attention_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the output and the log-sum-exp, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
pub(crate) fn outputs(queries: &TensorSpec) -> (TensorSpec, TensorSpec) {
    let shape = &queries.shape;
    let sums = Shape::from([shape[0], shape[1], shape[2]]);
    (queries.clone(), TensorSpec::new(sums, DType::F32))
}

impl AttentionBackend for CubeBackend {
    fn attention_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch([queries, keys, values], Mask::Causal, scale)
    }

    fn attention_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        scale: f32,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let positions = [query_positions, entry_positions];
        launch([queries, keys, values], Mask::Positions(positions), scale)
    }
}
