use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;

/// Launches over clusters of tokens, representatives, counts.
pub(super) fn launch(
    ints: [CubeTensor; 3],
    norms: CubeTensor,
    [columns, rows]: [usize; 2],
    [tokens, clusters, unclustered]: [usize; 3],
    differ: bool,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let (client, device, dtype) = (norms.client.clone(), norms.device.clone(), ints[0].dtype);
    let shape = ints[0].shape();
    let empty = |width: usize, dtype| {
        let shape = Shape::from([shape[0], shape[1], width]);
        empty_device_dtype(client.clone(), device.clone(), shape, dtype)
    };
    let (row_of, all_norms) = (empty(columns, dtype), empty(columns, DType::F32));
    let all_representatives = empty(rows, dtype);
    let [cluster_of_token, representatives, counts] = ints.map(CubeTensor::into_tensor_arg);
    kernel::extend::launch(
        &client,
        CubeCount::Static(
            columns.max(rows).div_ceil(kernel::UNITS) as u32,
            (shape[0] * shape[1]) as u32,
            1,
        ),
        CubeDim::new_1d(kernel::UNITS as u32),
        cluster_of_token,
        norms.into_tensor_arg(),
        representatives,
        counts,
        row_of.clone().into_tensor_arg(),
        all_norms.clone().into_tensor_arg(),
        all_representatives.clone().into_tensor_arg(),
        tokens,
        clusters,
        unclustered,
        differ,
        dtype_to_storage_type(dtype),
    );
    (row_of, all_norms, all_representatives)
}
