use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::Shape,
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel;
use crate::common::vector::vector_size;

pub(super) fn launch(x: CubeTensor, tables: [CubeTensor; 2], positions: CubeTensor) -> CubeTensor {
    let (client, shape) = (x.client.clone(), x.shape());
    let turned = empty_like(&x);
    let [cosines, sines] = tables;
    let width = width(&[&x, &cosines, &sines, &turned]);
    let types = [x.dtype, cosines.dtype, positions.dtype].map(dtype_to_storage_type);
    let vectors = shape[3] / 2 / width;
    kernel::rotate::launch(
        &client,
        cubes(&shape, shape[1], vectors),
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

/// Turned queries and keys.
pub(super) fn launch_both(
    [queries, keys]: [CubeTensor; 2],
    [cosines, sines]: [CubeTensor; 2],
    positions: CubeTensor,
) -> (CubeTensor, CubeTensor) {
    let (client, shape) = (queries.client.clone(), queries.shape());
    let (turned_queries, turned_keys) = (empty_like(&queries), empty_like(&keys));
    let width = width(&[&queries, &keys, &cosines, &sines, &turned_queries, &turned_keys]);
    let types = [queries.dtype, cosines.dtype, positions.dtype].map(dtype_to_storage_type);
    let vectors = shape[3] / 2 / width;
    kernel::rotate_both::launch(
        &client,
        cubes(&shape, shape[1] + keys.shape()[1], vectors),
        CubeDim::new_1d(kernel::UNITS as u32),
        width,
        queries.into_tensor_arg(),
        keys.into_tensor_arg(),
        cosines.into_tensor_arg(),
        sines.into_tensor_arg(),
        positions.into_tensor_arg(),
        turned_queries.clone().into_tensor_arg(),
        turned_keys.clone().into_tensor_arg(),
        vectors,
        types,
    );
    (turned_queries, turned_keys)
}

fn empty_like(x: &CubeTensor) -> CubeTensor {
    empty_device_dtype(x.client.clone(), x.device.clone(), x.shape(), x.dtype)
}

/// Numbers that are loaded at once, of rows and tables.
fn width(tensors: &[&CubeTensor]) -> usize {
    let width = tensors.iter().map(|tensor| vector_size(tensor)).min().unwrap_or(1);
    let half = tensors.first().map_or(1, |rows| rows.shape()[3] / 2);
    if half.is_multiple_of(width) { width } else { 1 }
}

/// Cubes of rows `[batch, _, tokens, _]` of so many heads.
fn cubes(rows: &Shape, heads: usize, vectors: usize) -> CubeCount {
    let along_x = (rows[2] * vectors).div_ceil(kernel::UNITS);
    CubeCount::Static(along_x as u32, heads as u32, rows[0] as u32)
}
