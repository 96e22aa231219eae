use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{
    mma::{self, Cut, lengths, search_planes},
    plan::Plan,
    portable,
};
use crate::common::{
    tile::{
        product::UNITS,
        support::{chunked, multiplies},
    },
    vector::vector_size,
};

/// Cubes that fill a large device: two a multiprocessor.
const BUSY: usize = 264;
/// Blocks of `to` that a split has at least: merging splits takes another launch.
const LEAST_BLOCKS: usize = 8;

/// Takes the tensors of both pairs.
pub(super) fn launch(
    tensors: [CubeTensor; 4],
    padding: CubeTensor,
    pairs: usize,
) -> (CubeTensor, CubeTensor) {
    if on_planes(&tensors, pairs) {
        launch_planes(tensors, padding, pairs)
    } else {
        launch_portable(tensors, padding, pairs)
    }
}

/// Whether tensor cores can take the call.
fn on_planes(tensors: &[CubeTensor; 4], pairs: usize) -> bool {
    let client = &tensors[0].client;
    let [from, to] = [&tensors[0], &tensors[1]].map(|tensor| tensor.shape());
    let rows = from[2].max(to[2]);
    let numbers = [from[0], from[1], rows].into_iter().try_fold(2 * pairs, usize::checked_mul);
    tensors.iter().all(|tensor| multiplies(client, tensor.dtype, tensor.shape()[3]))
        && numbers.is_some_and(|numbers| numbers <= u32::MAX as usize)
}

/// Planes of a cube and tiles of rows of a plane: as large as keeps the device busy and registers
/// hold.
fn sides(lists: usize, from: usize, pairs: usize) -> [usize; 2] {
    let busy = |[planes, tall]: [usize; 2]| from.div_ceil(planes * tall * 16) * lists >= BUSY;
    match pairs {
        1 if busy([4, 2]) => [4, 2],
        _ if busy([4, 1]) => [4, 1],
        _ => [2, 1],
    }
}

/// On tensor cores.
fn launch_planes(
    tensors: [CubeTensor; 4],
    padding: CubeTensor,
    pairs: usize,
) -> (CubeTensor, CubeTensor) {
    let shape = tensors[0].shape();
    let (batch, heads, from) = (shape[0], shape[1], shape[2]);
    let to = tensors[1].shape()[2];
    let lists = batch * heads;
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let channels = [tensors[0].shape()[3], tensors[2].shape()[3]];
    let types = [tensors[0].dtype, tensors[2].dtype].map(dtype_to_storage_type);
    let tensors = tensors.map(chunked);
    let arguments = || tensors.clone().map(CubeTensor::into_tensor_arg);

    let inverse = empty(Shape::from([2 * pairs, lists, from.max(to)]), DType::F32);
    let [rows, others, more_rows, more_others] = arguments();
    lengths::launch(
        &client,
        CubeCount::Static(
            from.max(to).div_ceil(mma::MEASURED) as u32,
            lists as u32,
            2 * pairs as u32,
        ),
        CubeDim::new_1d(mma::UNITS as u32),
        rows,
        others,
        more_rows,
        more_others,
        inverse.clone().into_tensor_arg(),
        channels,
        pairs,
        types,
    );

    let [planes, tall] = sides(lists, from, pairs);
    let row_tiles = from.div_ceil(planes * tall * 16);
    let blocks = to.div_ceil(mma::BLOCK);
    let splits = (BUSY / (row_tiles * lists)).min(blocks / LEAST_BLOCKS).max(1);
    let share = blocks.div_ceil(splits);
    let splits = blocks.div_ceil(share);
    let whole = splits == 1;
    let similarity = empty(Shape::from([batch, heads, from]), DType::F32);
    let index = empty(Shape::from([batch, heads, from]), padding.dtype);
    let parts = (!whole).then(|| {
        [DType::F32, DType::U32].map(|dtype| empty(Shape::from([splits, lists, from]), dtype))
    });
    let [of_search, places] = match &parts {
        Some([similarities, indices]) => [similarities, indices],
        None => [&similarity, &index],
    };
    let int = dtype_to_storage_type(padding.dtype);
    let [rows, others, more_rows, more_others] = arguments();
    search_planes::launch(
        &client,
        CubeCount::Static(row_tiles as u32, lists as u32, splits as u32),
        CubeDim::new_1d(planes as u32 * 32),
        rows,
        others,
        more_rows,
        more_others,
        inverse.into_tensor_arg(),
        padding.into_tensor_arg(),
        of_search.clone().into_tensor_arg(),
        places.clone().into_tensor_arg(),
        share,
        Cut { channels, pairs, planes, tall, whole },
        [types[0], types[1], int, dtype_to_storage_type(places.dtype)],
    );
    if let Some([similarities, indices]) = parts {
        portable::merge::launch(
            &client,
            CubeCount::Static(from.div_ceil(UNITS) as u32, lists as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            similarities.into_tensor_arg(),
            indices.into_tensor_arg(),
            similarity.clone().into_tensor_arg(),
            index.clone().into_tensor_arg(),
            int,
        );
    }
    (similarity, index)
}

/// On any device.
fn launch_portable(
    tensors: [CubeTensor; 4],
    padding: CubeTensor,
    pairs: usize,
) -> (CubeTensor, CubeTensor) {
    let shape = tensors[0].shape();
    let (batch, heads, from) = (shape[0], shape[1], shape[2]);
    let to = tensors[1].shape()[2];
    let lists = batch * heads;
    let client = tensors[0].client.clone();
    let device = tensors[0].device.clone();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), device.clone(), shape, dtype);
    let vector = tensors.iter().map(vector_size).min().unwrap_or(1);
    let channels = [tensors[0].shape()[3], tensors[2].shape()[3]];
    let norms = |x: &CubeTensor| {
        let (rows, channels) = (x.shape()[2], x.shape()[3]);
        let inverse = empty(Shape::from([lists, rows]), DType::F32);
        portable::inverse_norms::launch(
            &client,
            CubeCount::Static(rows.div_ceil(portable::MEASURED) as u32, lists as u32, 1),
            CubeDim::new_1d(UNITS as u32),
            vector,
            x.clone().into_tensor_arg(),
            inverse.clone().into_tensor_arg(),
            heads,
            channels,
            dtype_to_storage_type(x.dtype),
        );
        inverse
    };
    let [of_from, of_to] = [norms(&tensors[0]), norms(&tensors[1])];
    let [of_more_from, of_more_to] = match pairs {
        1 => [of_from.clone(), of_to.clone()],
        _ => [norms(&tensors[2]), norms(&tensors[3])],
    };

    let Plan { tile, row_tiles, tiles_of_split, splits } = Plan::new(lists, from, to, pairs);
    let similarities = empty(Shape::from([splits, lists, from]), DType::F32);
    let indices = empty(Shape::from([splits, lists, from]), DType::U32);
    let types = [tensors[0].dtype, tensors[2].dtype, padding.dtype].map(dtype_to_storage_type);
    let int = padding.dtype;
    let [rows, others, more_rows, more_others] = tensors;
    portable::search::launch(
        &client,
        CubeCount::Static(row_tiles as u32, lists as u32, splits as u32),
        CubeDim::new_1d(UNITS as u32),
        vector,
        rows.into_tensor_arg(),
        others.into_tensor_arg(),
        of_from.into_tensor_arg(),
        of_to.into_tensor_arg(),
        more_rows.into_tensor_arg(),
        more_others.into_tensor_arg(),
        of_more_from.into_tensor_arg(),
        of_more_to.into_tensor_arg(),
        padding.into_tensor_arg(),
        similarities.clone().into_tensor_arg(),
        indices.clone().into_tensor_arg(),
        heads,
        tiles_of_split,
        channels,
        pairs,
        tile,
        types,
    );
    let similarity = empty(Shape::from([batch, heads, from]), DType::F32);
    let index = empty(Shape::from([batch, heads, from]), int);
    portable::merge::launch(
        &client,
        CubeCount::Static(from.div_ceil(UNITS) as u32, lists as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        similarities.into_tensor_arg(),
        indices.into_tensor_arg(),
        similarity.clone().into_tensor_arg(),
        index.clone().into_tensor_arg(),
        dtype_to_storage_type(int),
    );
    (similarity, index)
}
