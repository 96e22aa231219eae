//! How a call with Burn's tensors reaches a kernel: through Burn's dispatch, which knows the backend of a tensor, and
//! through its fusion, which runs what it has put off first.

// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
#[cfg(feature = "fusion")]
use burn::{backend::fusion::custom::TensorSpec, tensor::DType};
use burn_cubecl::CubeBackend;

use crate::ragged_attention;

/// The kernels, as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub trait KernelBackend: Backend {
    /// See [`crate::ragged_attention()`].
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

/// What [`KernelBackend::ragged_attention`] will return, for a fusion that has not run it yet.
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
    let shapes = ragged_attention::weight_shapes(
        &queries.shape,
        &keys.shape,
        &tail_keys.shape,
        *tail,
        *weights,
    );
    let [of_entries, of_tail] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
    (queries.clone(), of_entries, of_tail)
}

impl KernelBackend for CubeBackend {
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
        ragged_attention::launch(
            [queries, keys, values, offsets, tail_keys, tail_values],
            tail,
            scale,
            weights,
        )
    }
}
