use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{Client, CubeCount, CubeDim};

use super::{
    merge::{self, decode_merge},
    part::{CHUNK, Cut, UNITS, decode_part},
};

/// Queries of a cube at most: their products with a key stay in registers.
pub(super) const MOST_ROWS: usize = 8;
/// Cubes a multiprocessor that hide each other's loads.
const CUBES_A_PROCESSOR: usize = 4;
/// Multiprocessors of a device that does not say.
const PROCESSORS: usize = 16;
/// Bytes of a load.
const LOAD: usize = 16;

/// What a call works on.
pub(super) struct Call {
    pub(super) queries: CubeTensor,
    /// Keys and values of the list, and where those of each head begin.
    pub(super) list: Option<[CubeTensor; 3]>,
    /// Entries of the head that has most of the list.
    pub(super) longest: usize,
    pub(super) keys: CubeTensor,
    pub(super) values: CubeTensor,
    pub(super) positions: Option<[CubeTensor; 2]>,
    pub(super) entries: usize,
    pub(super) scale: f32,
    pub(super) weights: bool,
}

/// How many query rows a cube has, and how many cubes the query rows of a kv head need.
pub(super) fn rows(queries: usize) -> (usize, usize) {
    let blocks = queries.div_ceil(MOST_ROWS);
    (queries.div_ceil(blocks), blocks)
}

/// Returns output, log-sum-exp, weights of the list and weights of the other entries.
pub(super) fn launch(call: Call) -> (CubeTensor, CubeTensor, CubeTensor, CubeTensor) {
    let Call { queries, list, longest, keys, values, positions, entries, scale, weights } = call;
    let client = queries.client.clone();
    let empty =
        |shape, dtype| empty_device_dtype(client.clone(), queries.device.clone(), shape, dtype);
    let shape = queries.shape();
    let (batch, query_heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let kv_heads = keys.shape()[1];
    let of_list = list.as_ref().map(|[keys, _, _]| keys.shape());
    let [list_weights, other_weights] =
        super::weight_shapes(&shape, of_list.as_ref(), kv_heads, entries, weights)
            .map(|shape| empty(shape, DType::F32));

    let (rows, blocks) = rows(query_heads / kv_heads * new);
    let total = longest + entries;
    let share = share(&client, total, batch * kv_heads * blocks);
    let count = total.div_ceil(share);
    let lines = batch * query_heads * new;
    let parts = empty(Shape::from([lines, count, head_dim]), DType::F32);
    let extremes = empty(Shape::from([lines, count, 2]), DType::F32);
    let output = empty(shape, queries.dtype);
    let log_sum_exp = empty(Shape::from([batch, query_heads, new]), DType::F32);

    let listed = list.is_some();
    let by_position = positions.is_some();
    let none = |shape: [usize; 3]| empty(Shape::from(shape), DType::I32);
    let [of_queries, of_entries] = positions.unwrap_or_else(|| [none([1, 1, 1]), none([1, 1, 1])]);
    let [list_keys, list_values, offsets] =
        list.unwrap_or_else(|| [keys.clone(), values.clone(), none([1, 1, 1])]);
    let width = width(head_dim, [&list_keys, &list_values, &keys, &values]);
    let int = if listed { offsets.dtype } else { of_queries.dtype };
    let [query, key, int] = [queries.dtype, keys.dtype, int].map(dtype_to_storage_type);
    let cut = Cut { head_dim, width, rows, listed, by_position, weights };
    decode_part::launch(
        &client,
        CubeCount::Static(count as u32, (kv_heads * blocks) as u32, batch as u32),
        CubeDim::new_1d(UNITS as u32),
        width,
        queries.into_tensor_arg(),
        list_keys.into_tensor_arg(),
        list_values.into_tensor_arg(),
        offsets.clone().into_tensor_arg(),
        keys.into_tensor_arg(),
        values.into_tensor_arg(),
        of_queries.into_tensor_arg(),
        of_entries.into_tensor_arg(),
        parts.clone().into_tensor_arg(),
        extremes.clone().into_tensor_arg(),
        list_weights.clone().into_tensor_arg(),
        other_weights.clone().into_tensor_arg(),
        entries,
        share,
        scale,
        cut,
        [query, key, int],
    );
    let longest = if weights { total } else { 1 };
    decode_merge::launch(
        &client,
        CubeCount::Static(longest.div_ceil(merge::WEIGHTS) as u32, lines as u32, 1),
        CubeDim::new_1d(merge::UNITS as u32),
        parts.into_tensor_arg(),
        extremes.into_tensor_arg(),
        offsets.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        log_sum_exp.clone().into_tensor_arg(),
        list_weights.clone().into_tensor_arg(),
        other_weights.clone().into_tensor_arg(),
        kv_heads,
        entries,
        head_dim,
        listed,
        weights,
        [query, int],
    );
    (output, log_sum_exp, list_weights, other_weights)
}

/// Entries of a cube, so that all cubes together keep the device busy, in whole chunks.
fn share(client: &Client, total: usize, heads: usize) -> usize {
    let processors = client.properties().hardware.num_streaming_multiprocessors;
    let processors = processors.map_or(PROCESSORS, |processors| processors as usize);
    let wanted = (processors * CUBES_A_PROCESSOR).div_ceil(heads);
    total.div_ceil(CHUNK).div_ceil(wanted) * CHUNK
}

/// Numbers that can be loaded at once from all of the tensors.
fn width(head_dim: usize, tensors: [&CubeTensor; 4]) -> usize {
    let most = LOAD / tensors[0].dtype.size();
    let fits = |width: usize| {
        head_dim.is_multiple_of(width)
            && tensors.iter().all(|tensor| {
                let strides = tensor.meta.strides();
                let shape = tensor.shape();
                let last = strides.len() - 1;
                strides[last] == 1
                    && (0..last).all(|dim| strides[dim].is_multiple_of(width) || shape[dim] == 1)
            })
    };
    [8, 4, 2].into_iter().find(|&width| width <= most && fits(width)).unwrap_or(1)
}
