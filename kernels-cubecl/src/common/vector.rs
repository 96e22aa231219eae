//! Numbers of a row that are loaded at once.

use burn_cubecl::tensor::CubeTensor;
use cubecl::tensor_vector_size_parallel;

/// Size of the vectors that a tensor is read in: 4 where the last dimension is contiguous and every
/// row begins on a multiple of 4, else 1. Every device has vectors of four.
pub(crate) fn vector_size(tensor: &CubeTensor) -> usize {
    let sizes = tensor.client.io_optimized_vector_sizes(tensor.dtype.size());
    let last = tensor.meta.num_dims() - 1;
    let offered = sizes.filter(|size| *size == 4);
    tensor_vector_size_parallel(offered, tensor.meta.shape(), tensor.meta.strides(), last)
}
