// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

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
pub(super) trait NearestBackend: Backend {
    /// See [`super::nearest`]. One pair is given twice.
    #[fusion(meta = outputs)]
    fn nearest(
        from: FloatTensor<Self>,
        to: FloatTensor<Self>,
        more_from: FloatTensor<Self>,
        more_to: FloatTensor<Self>,
        padding: IntTensor<Self>,
        pairs: usize,
    ) -> (FloatTensor<Self>, IntTensor<Self>);
}

/// Shapes and types of the outputs of [`NearestBackend::nearest`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    from: &TensorSpec,
    _to: &TensorSpec,
    _more_from: &TensorSpec,
    _more_to: &TensorSpec,
    padding: &TensorSpec,
    _pairs: &usize,
) -> (TensorSpec, TensorSpec) {
    let shape = || Shape::from([from.shape[0], from.shape[1], from.shape[2]]);
    (TensorSpec::new(shape(), DType::F32), TensorSpec::new(shape(), padding.dtype))
}

impl NearestBackend for CubeBackend {
    fn nearest(
        from: FloatTensor<Self>,
        to: FloatTensor<Self>,
        more_from: FloatTensor<Self>,
        more_to: FloatTensor<Self>,
        padding: IntTensor<Self>,
        pairs: usize,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        launch([from, to, more_from, more_to], padding, pairs)
    }
}
