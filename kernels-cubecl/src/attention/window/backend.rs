use super::{
    mma::{self, WindowBlueprint, measure_planes, weigh_planes},
    plan::WindowPlan,
    portable::{self, Kind},
};
use crate::{
    attention::{scoring::Scores, visible::Visible},
    common::{
        backend::*,
        processors::processors,
        tile::{
            product::UNITS,
            support::{chunked, multiplies},
        },
        vector::vector_size,
    },
};

/// Cubes of the first pass that a multiprocessor has registers for.
const MEASURING: usize = 3;
/// Cubes of the second pass that a multiprocessor has registers for.
const WEIGHING: usize = 4;
/// Most splits of the entries: each cube of the second pass reads all that it merges.
const MOST_SPLITS: usize = 64;
/// Most query rows of a cube.
const MOST_ROWS: usize = 256;
/// Query rows of a cube, if they are enough for the queries of a head.
const ROWS: usize = 128;
/// Least scale of the kernels on tensor cores: below it, entries that are not seen would have
/// weights above zero.
const LEAST_SCALE: f32 = 1e-20;

/// Attention of a window as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait WindowBackend: Backend {
    /// See [`super::window_weights`] and [`super::window_moments`]: the weights, or sums over all
    /// queries and others that are wanted.
    #[fusion(meta = |queries, keys, _visible, _counted, _scores, kind| {
        let shapes = shapes(&queries.shape, &keys.shape, *kind);
        let [first, squares, scatter] = shapes.map(|shape| TensorSpec::new(shape, DType::F32));
        (first, squares, scatter)
    })]
    fn window(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        #[extension_type] visible: Visible<Self>,
        counted: IntTensor<Self>,
        #[extension_type] scores: Scores<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the outputs. A buffer cannot be empty, so outputs that are not wanted have one number.
fn shapes(queries: &Shape, keys: &Shape, kind: Kind) -> [Shape; 3] {
    let sums = [queries[0], queries[1], 1, keys[2]];
    let if_wanted = |wanted| if wanted { sums } else { [1; 4] };
    let shapes = match kind {
        Kind::Weights => [[queries[0], queries[1], queries[2], keys[2]], [1; 4], [1; 4]],
        Kind::Moments { deviations, entropies } => {
            [sums, if_wanted(deviations), if_wanted(entropies)]
        }
    };
    shapes.map(Shape::from)
}

impl WindowBackend for CubeBackend {
    fn window(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        visible: Visible<Self>,
        counted: IntTensor<Self>,
        scores: Scores<Self>,
        kind: Kind,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let outputs = shapes(&queries.shape(), &keys.shape(), kind)
            .map(|shape| empty(&queries, shape, DType::F32));
        let (by_position, [of_queries, of_entries]) = visible.positions(&queries, counted.dtype);
        let on_planes = takes_planes(&queries, &keys, scores.numbers().scale);
        let tensors = [queries, keys, of_queries, of_entries, counted];
        if on_planes {
            launch_planes(tensors, &outputs, by_position, scores, kind);
        } else {
            launch_portable(tensors, &outputs, by_position, scores, kind);
        }
        outputs.into()
    }
}

/// Kv heads of all batch rows, query heads of each, queries, entries and channels.
fn sizes(queries: &CubeTensor, keys: &CubeTensor) -> [usize; 5] {
    let (queries, keys) = (queries.shape(), keys.shape());
    [queries[0] * keys[1], queries[1] / keys[1], queries[2], keys[2], queries[3]]
}

/// Whether tensor cores can take the call.
fn takes_planes(queries: &CubeTensor, keys: &CubeTensor, scale: f32) -> bool {
    let [lists, group, window, _, head_dim] = sizes(queries, keys);
    let of_head = window.div_ceil(16) * 16;
    let hardware = &queries.client.properties().hardware;
    let numbers = lists.checked_mul(2 * MOST_SPLITS * group * window);
    queries.dtype == keys.dtype
        && head_dim.is_multiple_of(32)
        && multiplies(&queries.client, queries.dtype, head_dim)
        && scale > LEAST_SCALE
        && of_head <= MOST_ROWS
        && weighed_rows(group, window) * (2 * head_dim + 13) <= hardware.max_shared_memory_size
        && group <= hardware.max_cube_count.1 as usize
        && numbers.is_some_and(|numbers| numbers <= u32::MAX as usize)
}

/// Query rows of a cube of the second pass: whole heads, each from a multiple of 16 on.
fn weighed_rows(group: usize, window: usize) -> usize {
    let of_head = window.div_ceil(16) * 16;
    if of_head > ROWS { MOST_ROWS } else { (group * of_head).next_power_of_two().min(ROWS) }
}

/// Tiles of keys of a cube, so that all cubes together fill the device once.
fn share(client: &Client, tiles: usize, cubes_a_processor: usize, cubes_a_split: usize) -> usize {
    let splits = (processors(client) * cubes_a_processor / cubes_a_split).clamp(1, MOST_SPLITS);
    tiles.div_ceil(splits).max(mma::PLANES)
}

/// Launches the kernels on tensor cores.
fn launch_planes(
    tensors: [CubeTensor; 5],
    [first, squares, scatter]: &[CubeTensor; 3],
    by_position: bool,
    scores: Scores<CubeBackend>,
    kind: Kind,
) {
    let [queries, keys, query_positions, entry_positions, counted] = tensors;
    let [lists, group, window, entries, head_dim] = sizes(&queries, &keys);
    let of_head = window.div_ceil(16) * 16;
    let old = entries.saturating_sub(window);
    let client = queries.client.clone();
    let types = [queries.dtype, counted.dtype].map(dtype_to_storage_type);
    let (queries, keys) = (chunked(queries), chunked(keys));
    let (measuring, kinds) = scores.clone().into_arg();
    let (weighing, _) = scores.into_arg();
    let cube = CubeDim::new_1d(mma::PLANES as u32 * 32);
    let tiles = entries.div_ceil(mma::KEYS);

    let rows = (group * window).next_power_of_two().clamp(16, ROWS);
    let blocks = (group * window).div_ceil(rows);
    let measured = share(&client, tiles, MEASURING, lists * blocks);
    let splits = tiles.div_ceil(measured);
    let found = empty(&queries, [splits, lists, 2, group * window], DType::F32);
    measure_planes::launch(
        &client,
        CubeCount::Static(splits as u32, blocks as u32, lists as u32),
        cube,
        queries.clone().into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        query_positions.clone().into_tensor_arg(),
        entry_positions.clone().into_tensor_arg(),
        found.clone().into_tensor_arg(),
        old,
        measuring,
        measured,
        WindowBlueprint { head_dim, rows, by_position, kinds },
        types,
    );

    let rows = weighed_rows(group, window);
    let blocks = group.div_ceil((rows / of_head).min(group));
    let weighed = share(&client, tiles, WEIGHING, lists * blocks);
    weigh_planes::launch(
        &client,
        CubeCount::Static(tiles.div_ceil(weighed) as u32, blocks as u32, lists as u32),
        cube,
        queries.into_tensor_arg(),
        keys.into_tensor_arg(),
        query_positions.into_tensor_arg(),
        entry_positions.into_tensor_arg(),
        counted.into_tensor_arg(),
        found.into_tensor_arg(),
        first.clone().into_tensor_arg(),
        squares.clone().into_tensor_arg(),
        scatter.clone().into_tensor_arg(),
        old,
        weighing,
        weighed,
        WindowBlueprint { head_dim, rows, by_position, kinds },
        kind,
        types,
    );
}

/// Launches the portable kernels.
fn launch_portable(
    tensors: [CubeTensor; 5],
    [first, squares, scatter]: &[CubeTensor; 3],
    by_position: bool,
    scores: Scores<CubeBackend>,
    kind: Kind,
) {
    let [queries, keys, query_positions, entry_positions, counted] = tensors;
    let [lists, group, window, entries, head_dim] = sizes(&queries, &keys);
    let rows = group * window;
    let WindowPlan { tile, blocks, parts, tiles, tiles_of_split, splits } =
        WindowPlan::new([lists, group, window], entries);
    let client = queries.client.clone();
    let types = [queries.dtype, keys.dtype, counted.dtype].map(dtype_to_storage_type);
    let vectors = [vector_size(&queries), vector_size(&keys)];
    let old = entries.saturating_sub(window);

    let (measuring, kinds) = scores.clone().into_arg();
    let (settling, _) = scores.clone().into_arg();
    let (weighing, _) = scores.into_arg();
    let [highest_of, sums_of] =
        [(); 2].map(|()| empty(&queries, [splits, lists, rows], DType::F32));
    let [highest, inverse] = [(); 2].map(|()| empty(&queries, [lists, rows], DType::F32));
    portable::measure::launch(
        &client,
        CubeCount::Static(splits as u32, (blocks * parts) as u32, lists as u32),
        CubeDim::new_1d(UNITS as u32),
        vectors[0],
        vectors[1],
        queries.clone().into_tensor_arg(),
        keys.clone().into_tensor_arg(),
        query_positions.clone().into_tensor_arg(),
        entry_positions.clone().into_tensor_arg(),
        highest_of.clone().into_tensor_arg(),
        sums_of.clone().into_tensor_arg(),
        old,
        measuring,
        group,
        tiles_of_split,
        head_dim,
        tile[0],
        tile[1],
        by_position,
        kinds,
        types,
    );
    portable::settle::launch(
        &client,
        CubeCount::Static(rows.div_ceil(UNITS) as u32, lists as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        highest_of.into_tensor_arg(),
        sums_of.into_tensor_arg(),
        query_positions.clone().into_tensor_arg(),
        counted.into_tensor_arg(),
        highest.clone().into_tensor_arg(),
        inverse.clone().into_tensor_arg(),
        settling,
        window,
        keys.shape()[1],
        by_position,
        kinds,
        types[2],
    );
    portable::weigh::launch(
        &client,
        CubeCount::Static(tiles as u32, blocks as u32, lists as u32),
        CubeDim::new_1d(UNITS as u32),
        vectors[0],
        vectors[1],
        queries.into_tensor_arg(),
        keys.into_tensor_arg(),
        query_positions.into_tensor_arg(),
        entry_positions.into_tensor_arg(),
        highest.into_tensor_arg(),
        inverse.into_tensor_arg(),
        first.clone().into_tensor_arg(),
        squares.clone().into_tensor_arg(),
        scatter.clone().into_tensor_arg(),
        old,
        weighing,
        group,
        head_dim,
        tile[0],
        tile[1],
        by_position,
        kinds,
        kind,
        types,
    );
}
