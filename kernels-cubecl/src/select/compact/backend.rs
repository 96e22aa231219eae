// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments, clippy::type_complexity)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::Shape};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// Compaction as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait CompactBackend: Backend {
    /// See [`super::compact`]. Statistics are only looked at if something was `counted`, padding if
    /// places are `filled`.
    #[fusion(meta = outputs)]
    fn compact_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        indices: IntTensor<Self>,
        padding: IntTensor<Self>,
        counted: bool,
        filled: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the kept entries, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    keys: &TensorSpec,
    values: &TensorSpec,
    positions: &TensorSpec,
    statistics: &TensorSpec,
    indices: &TensorSpec,
    _padding: &TensorSpec,
    counted: &bool,
    _filled: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec, TensorSpec) {
    let kept = indices.shape[2];
    let with = |shape: &Shape| super::launch::with_columns(shape, kept);
    let of_statistics =
        if *counted { with(&statistics.shape) } else { super::launch::no_statistics() };
    (
        TensorSpec::new(with(&keys.shape), keys.dtype),
        TensorSpec::new(with(&values.shape), values.dtype),
        TensorSpec::new(with(&positions.shape), positions.dtype),
        TensorSpec::new(of_statistics, burn::tensor::DType::F32),
    )
}

impl CompactBackend for CubeBackend {
    fn compact_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        positions: IntTensor<Self>,
        statistics: FloatTensor<Self>,
        indices: IntTensor<Self>,
        padding: IntTensor<Self>,
        counted: bool,
        filled: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, IntTensor<Self>, FloatTensor<Self>) {
        let (statistics, padding) = (counted.then_some(statistics), filled.then_some(padding));
        launch([keys, values], positions, statistics, indices, padding)
    }
}
