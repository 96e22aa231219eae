use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{kernel, operands::Lists};
use crate::common::copy_rows;

/// The shape of a rectangle beside these buffers, with so many columns.
pub(super) fn rectangle(buffers: &Shape, columns: usize) -> Shape {
    Shape::from([buffers[0], buffers[1], columns, buffers[3]])
}

/// Takes keys and values of the list, then of the tail.
pub(super) fn launch(
    [keys, values]: [CubeTensor; 2],
    lists: Lists<CubeBackend>,
    [tail_keys, tail_values]: [CubeTensor; 2],
    [width, tail]: [usize; 2],
) -> (CubeTensor, CubeTensor) {
    let (client, device, dtype) = (keys.client.clone(), keys.device.clone(), keys.dtype);
    let shape = rectangle(&tail_keys.shape(), width + tail);
    let empty = || empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
    let (all_keys, all_values) = (empty(), empty());
    let tensors = [&keys, &values, &tail_keys, &tail_values, &all_keys, &all_values];
    let vector = copy_rows::vector_size(tensors);
    let vectors = shape[3] / vector;
    let (differ, int) = match &lists {
        Lists::Alike => (false, DType::I32),
        Lists::Differ { offsets } => (true, offsets.dtype),
    };
    let types = [dtype, int].map(dtype_to_storage_type);
    let offsets = match lists {
        // Never looked at: another tensor stands in.
        Lists::Alike => keys.as_tensor_alias(0),
        Lists::Differ { offsets } => offsets.into_tensor_arg(),
    };
    let cubes = (width + tail).div_ceil(copy_rows::rows_of_cube(vectors));
    kernel::pad::launch(
        &client,
        CubeCount::Static((shape[0] * shape[1]) as u32, cubes as u32, 1),
        CubeDim::new_1d(copy_rows::UNITS as u32),
        vector,
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        offsets,
        tail_keys.into_tensor_arg(),
        tail_values.into_tensor_arg(),
        all_keys.clone().into_tensor_arg(),
        all_values.clone().into_tensor_arg(),
        width,
        vectors,
        differ,
        types,
    );
    (all_keys, all_values)
}
