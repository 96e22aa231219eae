//! How a call with Burn's tensors reaches a kernel: through Burn's dispatch, which knows the backend of a tensor, and
//! through its fusion, which runs what it has put off first.

// An operation of a backend takes its tensors one by one.
#![allow(clippy::too_many_arguments)]

use burn::backend::{
    Backend, backend_extension,
    tensor::{FloatTensor, IntTensor},
};
use burn_cubecl::CubeBackend;

use crate::ragged_attention;

/// The kernels, as operations of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub trait KernelBackend: Backend {
    /// See [`crate::ragged_attention()`].
    #[fusion(dtype = queries, shape = queries)]
    fn ragged_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        offsets: IntTensor<Self>,
        tail_keys: FloatTensor<Self>,
        tail_values: FloatTensor<Self>,
        tail: usize,
        scale: f32,
    ) -> FloatTensor<Self>;
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
    ) -> FloatTensor<Self> {
        ragged_attention::launch(
            [queries, keys, values, offsets, tail_keys, tail_values],
            tail,
            scale,
        )
    }
}
