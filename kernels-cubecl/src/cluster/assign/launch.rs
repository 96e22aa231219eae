use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;

/// Launches over rows, kept rows, merged rows, their nearest clusters, representatives, lengths of
/// heads, positions; similarity and scores.
pub(super) fn launch(
    ints: [CubeTensor; 7],
    [similarity, scores]: [CubeTensor; 2],
    [padding, merging, first]: [usize; 3],
    threshold: f32,
    [merges, differ]: [bool; 2],
) -> (CubeTensor, CubeTensor) {
    let (client, device) = (scores.client.clone(), scores.device.clone());
    let (shape, dtype) = (ints[0].shape(), ints[0].dtype);
    let empty = |dtype| empty_device_dtype(client.clone(), device.clone(), shape.clone(), dtype);
    let (clusters, ranks) = (empty(dtype), empty(DType::F32));
    let [rows, kept_rows, merged, nearest, representatives, held, positions] =
        ints.map(CubeTensor::into_tensor_arg);
    kernel::assign_clusters::launch(
        &client,
        CubeCount::Static(shape[2].div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        rows,
        kept_rows,
        merged,
        nearest,
        representatives,
        held,
        positions,
        similarity.into_tensor_arg(),
        scores.into_tensor_arg(),
        clusters.clone().into_tensor_arg(),
        ranks.clone().into_tensor_arg(),
        padding,
        merging,
        first,
        threshold,
        merges,
        differ,
        dtype_to_storage_type(dtype),
    );
    (clusters, ranks)
}
