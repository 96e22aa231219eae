// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// Sums over columns as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ColumnScoresBackend: Backend {
    /// See [`super::column_scores`].
    #[fusion(meta = |queries, keys, _lse, _scale, local, squares| {
        outputs(queries, keys, *local, *squares)
    })]
    fn column_scores_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        scale: f32,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// See [`super::column_scores`].
    #[fusion(meta = |queries, keys, _lse, _of_queries, _of_entries, _scale, local, squares| {
        outputs(queries, keys, *local, *squares)
    })]
    fn column_scores_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        scale: f32,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the sums, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    keys: &TensorSpec,
    local: usize,
    squares: bool,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let shapes = super::launch::output_shapes(&queries.shape, &keys.shape, local, squares);
    let [sums, local_sums, squares] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
    (sums, local_sums, squares)
}

impl ColumnScoresBackend for CubeBackend {
    fn column_scores_causal(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        scale: f32,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        launch([queries, keys, log_sum_exp], None, scale, local, squares)
    }

    fn column_scores_by_position(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        scale: f32,
        local: usize,
        squares: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let positions = Some([query_positions, entry_positions]);
        launch([queries, keys, log_sum_exp], positions, scale, local, squares)
    }
}
