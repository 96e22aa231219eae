#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait CountBackend: Backend {
    /// See [`super::count`]. `added` has a bit per kind of statistics that the mean is
    /// added to, the first the lowest, `squared` one per kind that the mean square is added to.
    #[fusion(meta = output)]
    fn count(
        statistics: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        added: u32,
        squared: u32,
    ) -> FloatTensor<Self>;
}

/// Shape of the statistics, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(
    statistics: &TensorSpec,
    _weights: &TensorSpec,
    _added: &u32,
    _squared: &u32,
) -> TensorSpec {
    statistics.clone()
}

impl CountBackend for CubeBackend {
    fn count(
        statistics: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        added: u32,
        squared: u32,
    ) -> FloatTensor<Self> {
        launch(statistics, weights, added, squared)
    }
}
