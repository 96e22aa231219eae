#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::IntTensor};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RanksBackend: Backend {
    /// See [`super::ranks`].
    #[fusion(meta = output)]
    fn ranks(positions: IntTensor<Self>, sinks: u32) -> IntTensor<Self>;
}

/// Shape of the ranks, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(positions: &TensorSpec, _sinks: &u32) -> TensorSpec {
    positions.clone()
}

impl RanksBackend for CubeBackend {
    fn ranks(positions: IntTensor<Self>, sinks: u32) -> IntTensor<Self> {
        launch(positions, sinks)
    }
}
