#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
use burn_cubecl::CubeBackend;

use super::{kernel::Curve, launch::launch};

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GatedBackend: Backend {
    /// See [`super::gated`].
    #[fusion(meta = output)]
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, curve: Curve) -> FloatTensor<Self>;
}

/// What will be returned, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn output(gate: &TensorSpec, _up: &TensorSpec, _curve: &Curve) -> TensorSpec {
    gate.clone()
}

impl GatedBackend for CubeBackend {
    fn gated(gate: FloatTensor<Self>, up: FloatTensor<Self>, curve: Curve) -> FloatTensor<Self> {
        launch(gate, up, curve)
    }
}
