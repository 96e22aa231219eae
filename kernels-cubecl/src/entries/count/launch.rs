use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::kernel;
use crate::common::rows::cube_count;

pub(super) fn launch(
    statistics: CubeTensor,
    weights: CubeTensor,
    added: u32,
    squared: u32,
) -> CubeTensor {
    let (client, shape, of_weights) =
        (statistics.client.clone(), statistics.shape(), weights.shape());
    let output =
        empty_device_dtype(client.clone(), statistics.device.clone(), shape.clone(), DType::F32);
    let batch = of_weights[0];
    kernel::count::launch(
        &client,
        cube_count((batch * shape[1] * shape[2]).div_ceil(kernel::UNITS)),
        CubeDim::new_1d(kernel::UNITS as u32),
        statistics.into_tensor_arg(),
        weights.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        shape[0] / batch,
        added,
        squared,
    );
    output
}
