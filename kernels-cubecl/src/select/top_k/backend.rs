use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// Selection as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait SelectBackend: Backend {
    /// See [`super::select`]. `rows` are the numbers of each row of scores, `[rows, 4]`, and
    /// `parts` cubes share one. The second output has `others` columns, or one number if there are
    /// none.
    #[fusion(meta = outputs)]
    fn select_columns(
        scores: FloatTensor<Self>,
        rows: IntTensor<Self>,
        width: usize,
        others: usize,
        parts: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>);
}

/// Shapes of the indices and counts, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    scores: &TensorSpec,
    rows: &TensorSpec,
    width: &usize,
    others: &usize,
    parts: &usize,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let (batch, heads) = (scores.shape[0], scores.shape[1]);
    let spec = |shape| TensorSpec::new(shape, rows.dtype);
    (
        spec(Shape::from([batch, heads, *width])),
        spec(super::launch::rest_shape(batch, heads, *others)),
        spec(Shape::from([batch * heads, *parts])),
    )
}

impl SelectBackend for CubeBackend {
    fn select_columns(
        scores: FloatTensor<Self>,
        rows: IntTensor<Self>,
        width: usize,
        others: usize,
        parts: usize,
    ) -> (IntTensor<Self>, IntTensor<Self>, IntTensor<Self>) {
        launch(scores, rows, width, others, parts)
    }
}
