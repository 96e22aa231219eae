use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::kernel;
use crate::common::{eviction::weakest::UNITS, rows::cube_count};

pub(super) fn launch(
    sums: CubeTensor,
    squares: CubeTensor,
    numbers: CubeTensor,
    positions: CubeTensor,
) -> CubeTensor {
    let (client, shape) = (sums.client.clone(), positions.shape());
    let empty = || {
        let device = sums.device.clone();
        empty_device_dtype(client.clone(), device, shape.clone(), DType::F32)
    };
    let (scores, deviations) = (empty(), empty());
    let group = sums.shape()[1] / shape[1];
    let integers = dtype_to_storage_type(positions.dtype);
    kernel::robust_scores::launch(
        &client,
        cube_count(shape[0] * shape[1]),
        CubeDim::new_1d(UNITS as u32),
        sums.clone().into_tensor_arg(),
        squares.into_tensor_arg(),
        numbers.into_tensor_arg(),
        positions.into_tensor_arg(),
        deviations.into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        group,
        integers,
    );
    scores
}
