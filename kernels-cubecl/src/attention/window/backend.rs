// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

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

use super::launch::launch;

/// Attention of a window as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait WindowBackend: Backend {
    /// See [`super::window_weights`] and [`super::window_moments`]: the weights of `single`
    /// queries, or sums over all of them and others that are wanted.
    #[fusion(meta = outputs)]
    fn window(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        counted: IntTensor<Self>,
        by_position: bool,
        scale: f32,
        single: bool,
        deviations: bool,
        entropies: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the weights or sums, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    keys: &TensorSpec,
    _query_positions: &TensorSpec,
    _entry_positions: &TensorSpec,
    _counted: &TensorSpec,
    _by_position: &bool,
    _scale: &f32,
    single: &bool,
    deviations: &bool,
    entropies: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let [batch, heads, rows, _] = [0, 1, 2, 3].map(|dim| queries.shape[dim]);
    let shapes = super::launch::shapes(
        [batch, heads, rows, keys.shape[2]],
        *single,
        *deviations,
        *entropies,
    );
    let [first, deviations, entropies] =
        shapes.map(|shape| TensorSpec::new(Shape::from(shape), DType::F32));
    (first, deviations, entropies)
}

impl WindowBackend for CubeBackend {
    fn window(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        query_positions: IntTensor<Self>,
        entry_positions: IntTensor<Self>,
        counted: IntTensor<Self>,
        by_position: bool,
        scale: f32,
        single: bool,
        deviations: bool,
        entropies: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let tensors = [queries, keys, query_positions, entry_positions, counted];
        launch(tensors, by_position, scale, [single, deviations, entropies])
    }
}
