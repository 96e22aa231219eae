#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RobustBackend: Backend {
    /// See [`super::robust_scores`]. `numbers` are two a head.
    #[fusion(meta = output)]
    fn robust_scores(
        sums: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        numbers: IntTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// Shape of the scores, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(
    _sums: &TensorSpec,
    _squares: &TensorSpec,
    _numbers: &TensorSpec,
    positions: &TensorSpec,
) -> TensorSpec {
    TensorSpec::new(Shape::from(positions.shape.clone()), DType::F32)
}

impl RobustBackend for CubeBackend {
    fn robust_scores(
        sums: FloatTensor<Self>,
        squares: FloatTensor<Self>,
        numbers: IntTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        launch(sums, squares, numbers, positions)
    }
}
