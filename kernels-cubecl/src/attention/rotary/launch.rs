use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;
use crate::common::vector::vector_size;

pub(super) fn launch(x: CubeTensor, tables: [CubeTensor; 2], positions: CubeTensor) -> CubeTensor {
    let (client, shape) = (x.client.clone(), x.shape());
    let turned = empty_device_dtype(client.clone(), x.device.clone(), shape.clone(), x.dtype);
    let half = shape[3] / 2;
    let [cosines, sines] = tables;
    let width = [&x, &cosines, &sines, &turned].map(vector_size).into_iter().min().unwrap_or(1);
    let width = if half.is_multiple_of(width) { width } else { 1 };
    let types = [x.dtype, cosines.dtype, positions.dtype].map(dtype_to_storage_type);
    let vectors = half / width;
    kernel::rotate::launch(
        &client,
        CubeCount::Static(
            (shape[2] * vectors).div_ceil(kernel::UNITS) as u32,
            shape[1] as u32,
            shape[0] as u32,
        ),
        CubeDim::new_1d(kernel::UNITS as u32),
        width,
        x.into_tensor_arg(),
        cosines.into_tensor_arg(),
        sines.into_tensor_arg(),
        positions.into_tensor_arg(),
        turned.clone().into_tensor_arg(),
        vectors,
        types,
    );
    turned
}
