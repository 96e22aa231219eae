// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
#[cfg(feature = "fusion")]
use burn::{
    backend::fusion::custom::TensorSpec,
    tensor::{DType, Shape},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernels as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait GlobalLocalBackend: Backend {
    /// See [`super::global_local`].
    #[fusion(meta = outputs)]
    fn global_local(
        sums: FloatTensor<Self>,
        past: FloatTensor<Self>,
        current: FloatTensor<Self>,
        kv_heads: usize,
        window: usize,
        reach: usize,
        most: bool,
    ) -> FloatTensor<Self>;
}

/// Shapes and types of the outputs of [`GlobalLocalBackend::global_local`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    sums: &TensorSpec,
    _past: &TensorSpec,
    _current: &TensorSpec,
    kv_heads: &usize,
    _window: &usize,
    _reach: &usize,
    _most: &bool,
) -> TensorSpec {
    TensorSpec::new(Shape::from([sums.shape[0], *kv_heads, sums.shape[2]]), DType::F32)
}

impl GlobalLocalBackend for CubeBackend {
    fn global_local(
        sums: FloatTensor<Self>,
        past: FloatTensor<Self>,
        current: FloatTensor<Self>,
        kv_heads: usize,
        window: usize,
        reach: usize,
        most: bool,
    ) -> FloatTensor<Self> {
        launch([sums, past, current], kv_heads, window, reach, most)
    }
}
