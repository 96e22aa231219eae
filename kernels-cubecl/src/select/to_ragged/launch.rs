use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::Shape,
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;
use crate::common::copy_rows;

/// The shape of a list of so many rows.
pub(super) fn list(rectangle: &Shape, total: usize) -> Shape {
    Shape::from([total, rectangle[3]])
}

pub(super) fn launch(
    [keys, values]: [CubeTensor; 2],
    offsets: CubeTensor,
    total: usize,
) -> (CubeTensor, CubeTensor) {
    let (client, device, dtype) = (keys.client.clone(), keys.device.clone(), keys.dtype);
    let shape = keys.shape();
    let empty = || empty_device_dtype(client.clone(), device.clone(), list(&shape, total), dtype);
    let (list_keys, list_values) = (empty(), empty());
    let vector = copy_rows::vector_size([&keys, &values, &list_keys, &list_values]);
    let vectors = shape[3] / vector;
    let types = [dtype, offsets.dtype].map(dtype_to_storage_type);
    let cubes = shape[2].div_ceil(copy_rows::rows_of_cube(vectors));
    kernel::pack::launch(
        &client,
        CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
        CubeDim::new_1d(copy_rows::UNITS as u32),
        vector,
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        offsets.into_tensor_arg(),
        list_keys.clone().into_tensor_arg(),
        list_values.clone().into_tensor_arg(),
        vectors,
        types,
    );
    (list_keys, list_values)
}
