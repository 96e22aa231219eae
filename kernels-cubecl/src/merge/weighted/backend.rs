// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use super::launch::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait MergeBackend: Backend {
    /// See [`super::merge`].
    #[fusion(meta = outputs)]
    fn merge(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        own: FloatTensor<Self>,
        other_keys: FloatTensor<Self>,
        other_values: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        directions: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes and types of the outputs of [`MergeBackend::merge`], for fusion.
#[cfg(feature = "fusion")]
fn outputs(
    keys: &TensorSpec,
    values: &TensorSpec,
    _own: &TensorSpec,
    _other_keys: &TensorSpec,
    _other_values: &TensorSpec,
    _weights: &TensorSpec,
    _slot: &TensorSpec,
    _directions: &bool,
) -> (TensorSpec, TensorSpec) {
    (keys.clone(), values.clone())
}

impl MergeBackend for CubeBackend {
    fn merge(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        own: FloatTensor<Self>,
        other_keys: FloatTensor<Self>,
        other_values: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        slot: IntTensor<Self>,
        directions: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch([keys, values, own, other_keys, other_values, weights], slot, directions)
    }
}
