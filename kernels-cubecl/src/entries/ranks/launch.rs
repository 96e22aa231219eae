use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::kernel;
use crate::common::{eviction::weakest::UNITS, rows::cube_count};

pub(super) fn launch(positions: CubeTensor, sinks: u32) -> CubeTensor {
    let (client, shape, dtype) = (positions.client.clone(), positions.shape(), positions.dtype);
    let ranks = empty_device_dtype(client.clone(), positions.device.clone(), shape.clone(), dtype);
    kernel::ranks::launch(
        &client,
        cube_count(shape[0] * shape[1]),
        CubeDim::new_1d(UNITS as u32),
        positions.into_tensor_arg(),
        ranks.clone().into_tensor_arg(),
        sinks,
        dtype_to_storage_type(dtype),
    );
    ranks
}
