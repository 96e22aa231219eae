//! How rows of numbers are copied: a vector a unit, the rows of a cube side by side.

use burn_cubecl::tensor::CubeTensor;
use cubecl::tensor_vector_size_parallel;

/// Units of a cube.
pub(crate) const UNITS: usize = 256;

/// Units of a row of so many vectors.
pub(crate) fn lanes(vectors: usize) -> usize {
    vectors.min(UNITS)
}

/// Rows that one cube copies, of so many vectors each.
pub(crate) fn rows_of_cube(vectors: usize) -> usize {
    (UNITS / vectors).max(1)
}

/// The most numbers of a row that can be copied at once in all of the tensors.
pub(crate) fn vector_size<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> usize {
    let of_one = |tensor: &CubeTensor| {
        tensor_vector_size_parallel(
            tensor.client.io_optimized_vector_sizes(tensor.dtype.size()),
            tensor.meta.shape(),
            tensor.meta.strides(),
            tensor.meta.num_dims() - 1,
        )
    };
    tensors.into_iter().map(of_one).min().unwrap_or(1)
}
