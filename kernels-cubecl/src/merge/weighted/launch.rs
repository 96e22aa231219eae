use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;
use crate::common::{
    copy_rows::{UNITS, rows_of_cube, vector_size},
    writable::writable,
};

/// Tensors: keys, values, own, other keys, other values, weights. Keys and values that nobody else
/// has are changed in place.
pub(super) fn launch(
    tensors: [CubeTensor; 6],
    slot: CubeTensor,
    directions: bool,
) -> (CubeTensor, CubeTensor) {
    let [keys, values, own, other_keys, other_values, weights] = tensors;
    let [keys, values] = [keys, values].map(|rows| writable(into_contiguous(rows)));
    let (client, shape) = (keys.client.clone(), keys.shape());
    let (lists, rows, channels) = (shape[0] * shape[1], shape[2], shape[3]);
    if directions {
        let vector = vector_size([&keys]);
        let vectors = channels / vector;
        let rows_of_cube = rows_of_cube(vectors);
        kernel::unit_rows::launch(
            &client,
            CubeCount::Static(rows.div_ceil(rows_of_cube) as u32, lists as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            vector,
            keys.clone().into_tensor_arg(),
            rows,
            vectors,
            rows_of_cube,
            dtype_to_storage_type(keys.dtype),
        );
    }
    let types = [keys.dtype, values.dtype, slot.dtype].map(dtype_to_storage_type);
    let others = weights.shape()[2];
    kernel::merge::launch(
        &client,
        CubeCount::Static(others as u32, lists as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        keys.clone().into_tensor_arg(),
        values.clone().into_tensor_arg(),
        own.into_tensor_arg(),
        other_keys.into_tensor_arg(),
        other_values.into_tensor_arg(),
        weights.into_tensor_arg(),
        slot.into_tensor_arg(),
        channels,
        channels.div_ceil(kernel::UNITS),
        directions,
        types,
    );
    (keys, values)
}
