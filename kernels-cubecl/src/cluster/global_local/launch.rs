use burn::{
    backend::TensorMetadata,
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel::{self, UNITS};

/// Sums, and what both windows gave.
pub(super) fn launch(
    statistics: [CubeTensor; 3],
    kv_heads: usize,
    window: usize,
    reach: usize,
    most: bool,
) -> CubeTensor {
    let (client, device) = (statistics[0].client.clone(), statistics[0].device.clone());
    let shape = statistics[0].shape();
    let (batch, columns) = (shape[0], shape[2]);
    let group = shape[1] / kv_heads;
    let outside = columns.saturating_sub(window);
    let empty = |shape| empty_device_dtype(client.clone(), device.clone(), shape, DType::F32);
    let levels = empty(Shape::from([batch, kv_heads]));
    let scores = empty(Shape::from([batch, kv_heads, columns]));
    let lists = (batch * kv_heads) as u32;
    let [sums, past, current] = statistics.clone().map(CubeTensor::into_tensor_arg);
    kernel::level::launch(
        &client,
        CubeCount::Static(lists, 1, 1),
        CubeDim::new_1d(UNITS as u32),
        sums,
        past,
        current,
        levels.clone().into_tensor_arg(),
        group,
    );
    let [sums, past, current] = statistics.map(CubeTensor::into_tensor_arg);
    kernel::global_local::launch(
        &client,
        CubeCount::Static(columns.div_ceil(UNITS) as u32, lists, 1),
        CubeDim::new_1d(UNITS as u32),
        sums,
        past,
        current,
        levels.into_tensor_arg(),
        scores.clone().into_tensor_arg(),
        outside,
        reach,
        most,
        group,
    );
    scores
}
