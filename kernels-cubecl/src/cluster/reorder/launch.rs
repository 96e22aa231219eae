use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;

type Outputs = (CubeTensor, CubeTensor, CubeTensor, CubeTensor, CubeTensor);

/// This shape with so many columns.
pub(super) fn of_width(shape: &Shape, width: usize) -> Shape {
    Shape::from([shape[0], shape[1], width])
}

/// The shape of statistics that are not there: a buffer of nothing is not one.
pub(super) fn no_statistics() -> Shape {
    Shape::from([1, 1, 1])
}

/// Launches over columns, clusters, order, rows, representatives, numbers of padding columns,
/// positions; norms and lengths.
pub(super) fn launch(
    ints: [CubeTensor; 7],
    floats: [CubeTensor; 2],
    statistics: Option<CubeTensor>,
    [padding, before]: [usize; 2],
    differ: bool,
) -> Outputs {
    let columns = &ints[0];
    let (client, device, dtype) = (columns.client.clone(), columns.device.clone(), columns.dtype);
    let shape = columns.shape();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let [positions, cluster_of_token] = [(); 2].map(|()| empty(shape.clone(), dtype));
    let representatives = empty(ints[4].shape(), dtype);
    let norms = empty(shape.clone(), DType::F32);
    let like = |statistics: &CubeTensor| of_width(&statistics.shape(), shape[2]);
    let new_statistics = empty(statistics.as_ref().map_or_else(no_statistics, like), DType::F32);
    let units = shape[2].max(representatives.shape()[2]);
    let counted = statistics.is_some();
    let stand_in = floats[0].clone();
    let [columns, clusters, order, rows, old_representatives, missing, old_positions] =
        ints.map(CubeTensor::into_tensor_arg);
    let [old_norms, lengths] = floats.map(CubeTensor::into_tensor_arg);
    kernel::reorder_tokens::launch(
        &client,
        CubeCount::Static(units.div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        columns,
        clusters,
        order,
        rows,
        old_representatives,
        missing,
        old_positions,
        old_norms,
        lengths,
        statistics.unwrap_or(stand_in).into_tensor_arg(),
        positions.clone().into_tensor_arg(),
        cluster_of_token.clone().into_tensor_arg(),
        representatives.clone().into_tensor_arg(),
        norms.clone().into_tensor_arg(),
        new_statistics.clone().into_tensor_arg(),
        padding,
        before,
        counted,
        differ,
        dtype_to_storage_type(dtype),
    );
    (positions, cluster_of_token, representatives, norms, new_statistics)
}
