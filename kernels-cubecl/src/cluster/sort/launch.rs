use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::Shape,
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{Client, CubeCount, CubeDim};

use super::kernel;

/// Units of a cube on this device.
pub(super) fn units(client: &Client) -> Option<usize> {
    let hardware = &client.properties().hardware;
    let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
    // What each unit counts, and two numbers to add up by.
    let bytes = |units: usize| 4 * units * (kernel::DIGITS + 2);
    [512, 256, 128, 64]
        .into_iter()
        .find(|&units| units <= most && bytes(units) <= hardware.max_shared_memory_size)
}

pub(super) fn launch(clusters: CubeTensor, number: usize) -> (CubeTensor, CubeTensor, CubeTensor) {
    let shape = clusters.shape();
    let [batch, heads] = [shape[0], shape[1]];
    let client = clusters.client.clone();
    let (device, dtype) = (clusters.device.clone(), clusters.dtype);
    let empty = |shape| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let [order, tokens_by_cluster, scratch] = [(); 3].map(|()| empty(shape.clone()));
    let padding_columns = empty(Shape::from([batch, heads]));
    let digits = (number - 1).checked_ilog2().map_or(1, |highest| highest as usize + 1);
    kernel::sort_by_cluster::launch(
        &client,
        CubeCount::Static((batch * heads) as u32, 1, 1),
        // Checked before.
        CubeDim::new_1d(units(&client).unwrap_or(64) as u32),
        clusters.into_tensor_arg(),
        order.clone().into_tensor_arg(),
        tokens_by_cluster.clone().into_tensor_arg(),
        scratch.into_tensor_arg(),
        padding_columns.clone().into_tensor_arg(),
        digits.div_ceil(kernel::BITS),
        units(&client).unwrap_or(64),
        dtype_to_storage_type(dtype),
    );
    (order, tokens_by_cluster, padding_columns)
}
