use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;

/// Rows and positions.
pub(super) fn launch(
    ints: [CubeTensor; 2],
    scores: CubeTensor,
    height: usize,
    [least, most]: [f32; 2],
) -> CubeTensor {
    let (client, device, dtype) = (scores.client.clone(), scores.device.clone(), ints[0].dtype);
    let shape = scores.shape();
    let shape = Shape::from([shape[0], shape[1], height]);
    let weights = empty_device_dtype(client.clone(), device, shape.clone(), DType::F32);
    let [rows, positions] = ints.map(CubeTensor::into_tensor_arg);
    kernel::row_weights::launch(
        &client,
        CubeCount::Static(height.div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        rows,
        positions,
        scores.into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        least,
        most,
        dtype_to_storage_type(dtype),
    );
    weights
}
