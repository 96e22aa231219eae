#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// Packing as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait PackBackend: Backend {
    /// See [`super::pack`]: keys and values, `total` rows of each.
    #[fusion(meta = outputs)]
    fn pack(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        total: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the packed keys and values, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    keys: &TensorSpec,
    values: &TensorSpec,
    _offsets: &TensorSpec,
    total: &usize,
) -> (TensorSpec, TensorSpec) {
    let of = |x: &TensorSpec| TensorSpec::new(super::launch::list(&x.shape, *total), x.dtype);
    (of(keys), of(values))
}

impl PackBackend for CubeBackend {
    fn pack(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        total: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch([keys, values], offsets, total)
    }
}
