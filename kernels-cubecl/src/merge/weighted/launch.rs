use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;

/// Tensors: keys, values, own, other keys, other values, weights.
pub(super) fn launch(
    tensors: [CubeTensor; 6],
    slot: CubeTensor,
    directions: bool,
) -> (CubeTensor, CubeTensor) {
    let [keys, values, ..] = &tensors;
    let (client, shape) = (keys.client.clone(), keys.shape());
    let empty = |like: &CubeTensor| {
        empty_device_dtype(client.clone(), like.device.clone(), like.shape(), like.dtype)
    };
    let (merged_keys, merged_values) = (empty(keys), empty(values));
    let types = [keys.dtype, values.dtype, slot.dtype].map(dtype_to_storage_type);
    let [keys, values, own, other_keys, other_values, weights] =
        tensors.map(CubeTensor::into_tensor_arg);
    kernel::merge::launch(
        &client,
        CubeCount::Static(shape[2] as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        keys,
        values,
        own,
        other_keys,
        other_values,
        weights,
        slot.into_tensor_arg(),
        merged_keys.clone().into_tensor_arg(),
        merged_values.clone().into_tensor_arg(),
        shape[3],
        shape[3].div_ceil(kernel::UNITS),
        directions,
        types,
    );
    (merged_keys, merged_values)
}
