// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::{Backend, backend_extension, tensor::FloatTensor};
use burn_cubecl::CubeBackend;

#[cfg(feature = "fusion")]
use super::operands::ListsMetadata;
use super::{launch::launch, operands::Lists};

/// Padding as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait PadBackend: Backend {
    /// See [`super::pad`]: keys and values.
    #[fusion(meta = outputs)]
    fn pad_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        #[extension_type] lists: Lists<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        width: usize,
        tail: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the padded keys and values, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    keys: &TensorSpec,
    values: &TensorSpec,
    _lists: &ListsMetadata,
    tail_keys: &TensorSpec,
    _tail_values: &TensorSpec,
    width: &usize,
    tail: &usize,
) -> (TensorSpec, TensorSpec) {
    let shape = super::launch::rectangle(&tail_keys.shape, width + tail);
    (TensorSpec::new(shape.clone(), keys.dtype), TensorSpec::new(shape, values.dtype))
}

impl PadBackend for CubeBackend {
    fn pad_entries(
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        lists: Lists<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        width: usize,
        tail: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        launch([keys, values], lists, [tail_keys, tail_values], [width, tail])
    }
}
