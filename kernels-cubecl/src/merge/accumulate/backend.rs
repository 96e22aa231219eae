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

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait AccumulateBackend: Backend {
    /// See [`super::accumulate`].
    #[fusion(meta = output)]
    fn accumulate(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        span: usize,
        slots: usize,
    ) -> FloatTensor<Self>;
}

/// Shapes and types of the outputs of [`AccumulateBackend::accumulate`], for fusion.
#[cfg(feature = "fusion")]
fn output(
    x: &TensorSpec,
    _weights: &TensorSpec,
    _slot: &TensorSpec,
    _span: &usize,
    slots: &usize,
) -> TensorSpec {
    TensorSpec::new(Shape::from([x.shape[0], x.shape[1], *slots, x.shape[3]]), DType::F32)
}

impl AccumulateBackend for CubeBackend {
    fn accumulate(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        span: usize,
        slots: usize,
    ) -> FloatTensor<Self> {
        launch(x, weights, slot, span, slots)
    }
}
