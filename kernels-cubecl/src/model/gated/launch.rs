use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use super::kernel::{self, Curve};
use crate::common::{rows::cube_count, vector::vector_size};

pub(in crate::model) fn launch(gate: CubeTensor, up: CubeTensor, curve: Curve) -> CubeTensor {
    let (client, shape) = (gate.client.clone(), gate.shape());
    let output = empty_device_dtype(client.clone(), gate.device.clone(), shape.clone(), gate.dtype);
    let width = [&gate, &up, &output].map(vector_size).into_iter().min().unwrap_or(1);
    let vectors = shape[1] / width;
    let element = dtype_to_storage_type(gate.dtype);
    kernel::gated::launch(
        &client,
        cube_count((shape[0] * vectors).div_ceil(kernel::UNITS)),
        CubeDim::new_1d(kernel::UNITS as u32),
        width,
        gate.into_tensor_arg(),
        up.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        vectors,
        curve,
        element,
    );
    output
}
