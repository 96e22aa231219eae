#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use super::launch::{launch, launch_both};

/// Rotation as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RotateBackend: Backend {
    /// See [`super::rotate`].
    #[fusion(meta = output)]
    fn rotate(
        x: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self>;

    /// See [`super::rotate_both`].
    #[fusion(meta = outputs)]
    fn rotate_both(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        positions: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shape of the rotated rows, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(
    x: &TensorSpec,
    _cosines: &TensorSpec,
    _sines: &TensorSpec,
    _positions: &TensorSpec,
) -> TensorSpec {
    x.clone()
}

/// Shapes of turned queries and keys.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    keys: &TensorSpec,
    _cosines: &TensorSpec,
    _sines: &TensorSpec,
    _positions: &TensorSpec,
) -> (TensorSpec, TensorSpec) {
    (queries.clone(), keys.clone())
}

impl RotateBackend for CubeBackend {
    fn rotate(
        x: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        positions: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        launch(x, [cosines, sines], positions)
    }

    fn rotate_both(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        positions: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch_both([queries, keys], [cosines, sines], positions)
    }
}
