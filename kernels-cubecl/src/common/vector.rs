//! Numbers of a row that are loaded at once.

use burn_cubecl::tensor::CubeTensor;
use cubecl::{prelude::*, tensor_vector_size_parallel};

/// Size of the vectors that a tensor is read in: 4 where the last dimension is contiguous and every
/// row begins on a multiple of 4, else 1. Every device has vectors of four.
pub(crate) fn vector_size(tensor: &CubeTensor) -> usize {
    let sizes = tensor.client.io_optimized_vector_sizes(tensor.dtype.size());
    let last = tensor.meta.num_dims() - 1;
    let offered = sizes.filter(|size| *size == 4);
    tensor_vector_size_parallel(offered, tensor.meta.shape(), tensor.meta.strides(), last)
}

/// The sum of the products of two vectors, of `width` numbers.
#[cube]
pub(crate) fn dot<N: Size>(a: Vector<f32, N>, b: Vector<f32, N>, #[comptime] width: usize) -> f32 {
    let products = a * b;
    let mut sum = f32::new(0.0);
    #[unroll]
    for index in 0..width {
        sum += products.extract(index);
    }
    sum
}
