//! Copies of rows of keys and values: one vector per unit, the rows of a cube side by side.

use burn_cubecl::tensor::CubeTensor;
use cubecl::{prelude::*, tensor_vector_size_parallel};

use crate::common::line::StridedSlice;

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

/// Copies the vectors of a row of keys and of a row of values that are this unit's. Of the slices
/// each says where the channels of a row lie in its tensor; a vector of several numbers is only
/// used where they lie side by side.
#[cube]
pub(crate) fn copy_rows<K: Float, V: Float, N: Size>(
    keys: &Tensor<Vector<K, N>>,
    values: &Tensor<Vector<V, N>>,
    to_keys: &mut Tensor<Vector<K, N>>,
    to_values: &mut Tensor<Vector<V, N>>,
    key: &StridedSlice,
    value: &StridedSlice,
    to_key: &StridedSlice,
    to_value: &StridedSlice,
    #[comptime] vectors: usize,
) {
    let width = keys.vector_size();
    let side_by_side = comptime!(lanes(vectors));
    let mut vector = UNIT_POS as usize % side_by_side;
    while vector < vectors {
        let channel = vector * width;
        let of_key = keys[key.at(channel) / width];
        let of_value = values[value.at(channel) / width];
        to_keys[to_key.at(channel) / width] = of_key;
        to_values[to_value.at(channel) / width] = of_value;
        vector += side_by_side;
    }
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
