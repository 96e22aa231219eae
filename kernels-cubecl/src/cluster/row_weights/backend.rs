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

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RowWeightsBackend: Backend {
    /// See [`super::row_weights`].
    #[fusion(meta = outputs)]
    fn row_weights(
        rows: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        height: usize,
        least: f32,
        most: f32,
    ) -> FloatTensor<Self>;
}

/// Shapes and types of the outputs of [`RowWeightsBackend::row_weights`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    rows: &TensorSpec,
    _positions: &TensorSpec,
    _scores: &TensorSpec,
    height: &usize,
    _least: &f32,
    _most: &f32,
) -> TensorSpec {
    TensorSpec::new(Shape::from([rows.shape[0], rows.shape[1], *height]), DType::F32)
}

impl RowWeightsBackend for CubeBackend {
    fn row_weights(
        rows: IntTensor<Self>,
        positions: IntTensor<Self>,
        scores: FloatTensor<Self>,
        height: usize,
        least: f32,
        most: f32,
    ) -> FloatTensor<Self> {
        launch([rows, positions], scores, height, [least, most])
    }
}
