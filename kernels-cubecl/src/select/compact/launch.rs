use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;
use crate::common::copy_rows::{UNITS, rows_of_cube, vector_size};

/// Shape with so many columns, the third dimension.
pub(super) fn with_columns(shape: &Shape, columns: usize) -> Shape {
    let mut shape = shape.clone();
    shape[2] = columns;
    shape
}

/// Shape of absent statistics: a buffer cannot be empty.
pub(super) fn no_statistics() -> Shape {
    Shape::from([1, 1, 1])
}

/// Returns keys, values, positions and statistics.
pub(super) fn launch(
    [keys, values]: [CubeTensor; 2],
    positions: CubeTensor,
    statistics: Option<CubeTensor>,
    indices: CubeTensor,
    padding: Option<CubeTensor>,
) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    let (client, device) = (keys.client.clone(), keys.device.clone());
    let [rows, kept] = {
        let shape = indices.shape();
        [shape[0] * shape[1], shape[2]]
    };
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let like = |x: &CubeTensor| empty(with_columns(&x.shape(), kept), x.dtype);
    let (kept_keys, kept_values, kept_positions) = (like(&keys), like(&values), like(&positions));
    let kept_statistics =
        statistics.as_ref().map_or_else(|| empty(no_statistics(), DType::F32), like);

    let vector = vector_size([&keys, &values, &kept_keys, &kept_values]);
    let vectors = keys.shape()[3] / vector;
    let row_cubes = kept.div_ceil(rows_of_cube(vectors));
    let column_cubes = kept.div_ceil(UNITS);
    let numbers = |statistics: &CubeTensor| statistics.shape()[0] * statistics.shape()[1];
    let planes = 1 + statistics.as_ref().map_or(0, |statistics| numbers(statistics) / rows);
    let types = [keys.dtype, values.dtype, indices.dtype].map(dtype_to_storage_type);
    let (counted, filled) = (statistics.is_some(), padding.is_some());
    kernel::compact::launch(
        &client,
        CubeCount::Static(rows as u32, (row_cubes + planes * column_cubes) as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        vector,
        keys.clone().into_tensor_arg(),
        values.into_tensor_arg(),
        positions.into_tensor_arg(),
        statistics.unwrap_or(keys).into_tensor_arg(),
        indices.clone().into_tensor_arg(),
        padding.unwrap_or(indices).into_tensor_arg(),
        kept_keys.clone().into_tensor_arg(),
        kept_values.clone().into_tensor_arg(),
        kept_positions.clone().into_tensor_arg(),
        kept_statistics.clone().into_tensor_arg(),
        row_cubes,
        column_cubes,
        vectors,
        counted,
        filled,
        types,
    );
    (kept_keys, kept_values, kept_positions, kept_statistics)
}
