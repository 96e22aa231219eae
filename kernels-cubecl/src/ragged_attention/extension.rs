// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use super::launch;

/// The kernel as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait RaggedAttentionBackend: Backend {
    /// See [`super::ragged_attention`].
    #[fusion(meta = outputs)]
    fn ragged_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// What [`RaggedAttentionBackend::ragged_attention`] will return, for a fusion that has not run it yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    keys: &TensorSpec,
    _values: &TensorSpec,
    _offsets: &TensorSpec,
    tail_keys: &TensorSpec,
    _tail_values: &TensorSpec,
    tail: &usize,
    _scale: &f32,
    weights: &bool,
) -> (TensorSpec, TensorSpec, TensorSpec) {
    let shapes =
        super::weight_shapes(&queries.shape, &keys.shape, &tail_keys.shape, *tail, *weights);
    let [of_entries, of_tail] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
    (queries.clone(), of_entries, of_tail)
}

impl RaggedAttentionBackend for CubeBackend {
    fn ragged_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        tail: usize,
        scale: f32,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        launch([queries, keys, values, offsets, tail_keys, tail_values], tail, scale, weights)
    }
}
