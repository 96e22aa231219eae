//! How many numbers of a row are loaded at once.

use burn_cubecl::tensor::CubeTensor;
use cubecl::tensor_vector_size_parallel;

/// 4 where the last dimension lies close together and every row begins on a multiple of it, else 1. Vectors of
/// four are what every device has.
pub(crate) fn vector_size(tensor: &CubeTensor) -> usize {
    let sizes = tensor.client.io_optimized_vector_sizes(tensor.dtype.size());
    let last = tensor.meta.num_dims() - 1;
    let offered = sizes.filter(|size| *size == 4);
    tensor_vector_size_parallel(offered, tensor.meta.shape(), tensor.meta.strides(), last)
}
