mod extension;
mod kernel;

use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Int, Shape, Tensor, TensorData},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::{extension::WindowBackend, kernel::Kind};
use crate::{
    Result,
    check::Check,
    tile::product::{SIDE, UNITS, shared_bytes, sides},
    vector::vector_size,
};

/// What [`window_weights`] and [`window_moments`] work on.
#[derive(Clone, Debug)]
pub struct Window {
    /// Queries, positions encoded, `[batch, query_heads, queries, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// The position of each query, `[batch, 1, queries]`; −1 is padding.
    pub query_positions: Tensor<3, Int>,
    /// The position of each entry, `[batch, kv_heads, entries]`; −1 is padding.
    pub entry_positions: Tensor<3, Int>,
    /// False if nothing is padding and the queries belong to the last entries, so that positions need not be read.
    pub by_position: bool,
    /// What query-key products are multiplied by.
    pub scale: f64,
}

/// What [`window_moments`] works on.
#[derive(Clone, Debug)]
pub struct WindowMoments {
    /// Queries and keys.
    pub window: Window,
    /// How many of the queries count, the last, one number a batch row.
    pub counted: Vec<usize>,
    /// Whether [`WindowMomentsOutput::deviations`] are wanted.
    pub deviations: bool,
    /// Whether [`WindowMomentsOutput::entropies`] are wanted.
    pub entropies: bool,
}

/// What [`window_moments`] returns: for each entry sums over the queries, `[batch, query_heads, entries]`, f32.
#[derive(Clone, Debug)]
pub struct WindowMomentsOutput {
    /// Of the weights.
    pub sums: Tensor<3>,
    /// Of the squares of what the weights of queries that count deviate from their mean.
    pub deviations: Option<Tensor<3>>,
    /// Of −w · ln(w + 10⁻¹⁰).
    pub entropies: Option<Tensor<3>>,
}

/// Cubes that keep a large device busy: entries are split until there are as many.
const CUBES: usize = 1024;

/// The attention weights of a few queries over the entries of a layer, `[batch, query_heads, queries, entries]`, f32. A
/// query sees the entries written at its position or before, padding excepted; one that sees nothing weights all alike,
/// and the weights of one that is padding are zero. What scorers need that look at single weights.
///
/// The same as [`window_moments`], but that it writes 4 · batch · query_heads · queries · entries bytes.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes do not fit, a tensor is empty, or the device has no kernels or cannot
/// launch so much.
pub fn window_weights(window: Window) -> Result<Tensor<4>> {
    let [batch, heads, queries, _] = window.queries.dims();
    let check = window.check("window_weights")?;
    check.countable("weights", &[batch, heads, queries, window.keys.dims()[2]])?;
    Ok(window.run(vec![queries; batch], true, false, false).0)
}

/// For each entry the sum of its attention weights over a few queries, and how they deviate and scatter, without keeping
/// the weights: what SnapKV, CompressKV, TOVA, EMS and CAKE score entries by. See [`window_weights`] for which entries a
/// query sees.
///
/// A cube of 256 units makes the scores of up to 128 query rows, which are those of all heads that share the keys, and
/// 128 entries (fewer if there are few): 16 channels at a time in shared memory, scores in registers. A first pass over
/// the entries, split among cubes, keeps the highest score of each row and the sum of exponentials, and a small kernel
/// merges splits in their order. A second pass makes the scores again, turns them into weights, and sums them over
/// queries, 16 entries at a time, in the order of the queries.
///
/// With `rows` = query_heads · queries it multiplies and adds 4 · batch · rows · entries · head_dim times. It reads the
/// keys twice for every 128 rows of a kv head, the second time in part from the cache of the device, and writes 4 bytes an
/// entry, query head and sum.
///
/// # Errors
/// [`KernelError`](crate::KernelError) if shapes do not fit, a tensor is empty, or the device has no kernels or cannot
/// launch so much.
pub fn window_moments(input: WindowMoments) -> Result<WindowMomentsOutput> {
    let WindowMoments { window, counted, deviations, entropies } = input;
    let check = window.check("window_moments")?;
    let [batch, heads, queries, _] = window.queries.dims();
    let entries = window.keys.dims()[2];
    check.shape("counted", [counted.len()], [batch])?;
    for &counted in &counted {
        check.value("counted", counted, counted <= queries, format!("at most {queries}"))?;
    }
    let (sums, squares, scatter) = window.run(counted, false, deviations, entropies);
    let of = |sums: Tensor<4>| sums.reshape([batch, heads, entries]);
    Ok(WindowMomentsOutput {
        sums: of(sums),
        deviations: deviations.then(|| of(squares)),
        entropies: entropies.then(|| of(scatter)),
    })
}

impl Window {
    fn check(&self, operation: &'static str) -> Result<Check> {
        let check = Check::new(operation, &self.queries.device())?;
        let [batch, heads, queries, head_dim] = self.queries.dims();
        let [_, kv_heads, entries, _] = self.keys.dims();
        let some = |what, number| check.value(what, number, number > 0, "1 or more");
        some("batch", batch)?;
        some("query_heads", heads)?;
        some("queries", queries)?;
        some("head_dim", head_dim)?;
        some("kv_heads", kv_heads)?;
        some("entries", entries)?;
        check.shape("keys", self.keys.dims(), [batch, kv_heads, entries, head_dim])?;
        check.shape("query_positions", self.query_positions.dims(), [batch, 1, queries])?;
        check.shape("entry_positions", self.entry_positions.dims(), [batch, kv_heads, entries])?;
        let grouped = heads.is_multiple_of(kv_heads);
        check.value("query_heads", heads, grouped, format!("a multiple of {kv_heads}"))?;
        check.countable("queries", &self.queries.dims())?;
        check.countable("keys", &self.keys.dims())?;
        check.countable("sums", &[batch, heads, entries])?;
        let Plan { tile, blocks, parts, tiles, splits, .. } =
            Plan::new([batch, heads, queries], kv_heads, entries);
        let lists = batch * kv_heads;
        check.countable("splits", &[splits, batch, heads, queries])?;
        // The second pass has more of it: of each row two numbers and sixteen weights besides what it sees.
        let of_rows = tile[0] * SIDE * (4 + 8 + 4 * SIDE);
        let of_both = tile.map(shared_bytes).iter().sum::<usize>();
        check.shared_bytes(of_both + of_rows + 4 * tile[1] * SIDE)?;
        check.cubes([tiles.max(splits), blocks * parts, lists])?;
        check.cubes([(heads / kv_heads * queries).div_ceil(UNITS), lists, 1])?;
        Ok(check)
    }

    fn run(
        self,
        counted: Vec<usize>,
        single: bool,
        deviations: bool,
        entropies: bool,
    ) -> (Tensor<4>, Tensor<4>, Tensor<4>) {
        let batch = counted.len();
        let counted = counted.into_iter().map(|counted| counted as i64).collect::<Vec<_>>();
        let counted =
            Tensor::<1, Int>::from_data(TensorData::new(counted, [batch]), &self.queries.device());
        let (first, squares, scatter) = Dispatch::window(
            self.queries.into_dispatch(),
            self.keys.into_dispatch(),
            self.query_positions.into_dispatch(),
            self.entry_positions.into_dispatch(),
            counted.into_dispatch(),
            self.by_position,
            self.scale as f32,
            single,
            deviations,
            entropies,
        );
        let tensor = Tensor::from_dispatch;
        (tensor(first), tensor(squares), tensor(scatter))
    }
}

/// How the work is shared out.
struct Plan {
    /// Query rows and entries of a unit of a tile.
    tile: [usize; 2],
    /// Tiles of the rows of a kv head, the parts of a head being one, and those parts.
    blocks: usize,
    parts: usize,
    tiles: usize,
    tiles_of_split: usize,
    splits: usize,
}

impl Plan {
    fn new([batch, heads, queries]: [usize; 3], kv_heads: usize, entries: usize) -> Self {
        let group = heads / kv_heads;
        let tile = sides(batch * kv_heads, group * queries, entries);
        // As the kernel does.
        let rows = tile[0] * SIDE;
        let blocks = group.div_ceil((rows / queries).clamp(1, group));
        let parts = queries.div_ceil(rows);
        let tiles = entries.div_ceil(tile[1] * SIDE);
        let tiles_of_split = tiles.div_ceil(CUBES.div_ceil(blocks * parts * batch * kv_heads));
        let splits = tiles.div_ceil(tiles_of_split);
        Self { tile, blocks, parts, tiles, tiles_of_split, splits }
    }
}

/// The shapes of what is returned. A buffer of nothing is not one, so what is not wanted has one number.
fn shapes(
    [batch, heads, queries, entries]: [usize; 4],
    single: bool,
    deviations: bool,
    entropies: bool,
) -> [[usize; 4]; 3] {
    let sums = [batch, heads, 1, entries];
    let wanted = |wanted| if wanted { sums } else { [1; 4] };
    let first = if single { [batch, heads, queries, entries] } else { sums };
    [first, wanted(deviations), wanted(entropies)]
}

/// Takes queries, keys, positions of queries and of entries, and how many queries count; and what is wanted.
fn launch(
    tensors: [CubeTensor; 5],
    by_position: bool,
    scale: f32,
    [single, deviations, entropies]: [bool; 3],
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [queries, keys, query_positions, entry_positions, counted] = tensors;
    let shape = queries.shape();
    let (batch, heads, window, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let lists = batch * kv_heads;
    let rows = heads / kv_heads * window;
    let Plan { tile, blocks, parts, tiles, tiles_of_split, splits } =
        Plan::new([batch, heads, window], kv_heads, entries);
    let client = queries.client.clone();
    let device = queries.device.clone();
    let empty = |shape: &[usize]| {
        empty_device_dtype(client.clone(), device.clone(), Shape::from(shape), DType::F32)
    };
    let types = [queries.dtype, keys.dtype, counted.dtype].map(dtype_to_storage_type);
    let vectors = [vector_size(&queries), vector_size(&keys)];
    let old = entries.saturating_sub(window);

    let [highest_of, sums_of] = [(); 2].map(|()| empty(&[splits, lists, rows]));
    kernel::measure::launch(
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
        scale,
        heads / kv_heads,
        tiles_of_split,
        head_dim,
        tile[0],
        tile[1],
        by_position,
        types,
    );
    let [highest, inverse] = [(); 2].map(|()| empty(&[lists, rows]));
    kernel::settle::launch(
        &client,
        CubeCount::Static(rows.div_ceil(UNITS) as u32, lists as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        highest_of.into_tensor_arg(),
        sums_of.into_tensor_arg(),
        query_positions.clone().into_tensor_arg(),
        counted.into_tensor_arg(),
        highest.clone().into_tensor_arg(),
        inverse.clone().into_tensor_arg(),
        window,
        kv_heads,
        by_position,
        types[2],
    );
    let outputs = shapes([batch, heads, window, entries], single, deviations, entropies);
    let [first, squares, scatter] = outputs.map(|shape| empty(&shape));
    let kind = if single { Kind::Weights } else { Kind::Moments { deviations, entropies } };
    kernel::weigh::launch(
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
        scale,
        heads / kv_heads,
        head_dim,
        tile[0],
        tile[1],
        by_position,
        kind,
        types,
    );
    (first, squares, scatter)
}
