#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
use burn_cubecl::CubeBackend;

use super::{kernel::Curve, launch::launch};

/// The gate as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GatedBackend: Backend {
    /// See [`super::gated`].
    #[fusion(meta = output)]
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, curve: Curve) -> FloatTensor<Self>;
}

/// Shape of the output, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn output(gate: &TensorSpec, _up: &TensorSpec, _curve: &Curve) -> TensorSpec {
    gate.clone()
}

impl GatedBackend for CubeBackend {
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, curve: Curve) -> FloatTensor<Self> {
        launch(gate, up, curve)
    }
}
