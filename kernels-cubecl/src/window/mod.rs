mod extension;
mod kernel;
mod launch;
mod planes;

use burn::{
    backend::Dispatch,
    tensor::{Int, Tensor, TensorData},
};

use self::extension::WindowBackend;
use crate::{
    Result,
    check::Check,
    tile::product::{SIDE, UNITS, shared_bytes, sides},
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
/// Where the device multiplies tiles of 16-bit numbers, queries and keys are of one such type, head_dim is a multiple of
/// 32 up to 128 and there are at most 256 queries, a plane takes 32 keys at a time straight from memory to registers, and
/// multiplies them with all query rows that share them, which stay in shared memory. A first pass over the entries,
/// split among cubes, keeps the highest score of each row and the sum of exponentials; in a second one each cube merges
/// what it needs of them in the order of the splits, makes the scores again, and sums weights in registers. Products
/// are exact in f32.
///
/// Elsewhere a cube of 256 units makes the scores of up to 128 query rows, which are those of all heads that share the keys, and
/// 128 entries (fewer if there are few): 16 channels at a time in shared memory, scores in registers. A first pass over
/// the entries, split among cubes, keeps the highest score of each row and the sum of exponentials, and a small kernel
/// merges splits in their order. A second pass makes the scores again, turns them into weights, and sums them over
/// queries, 16 entries at a time, in the order of the queries.
///
/// With `rows` = query_heads · queries it multiplies and adds 4 · batch · rows · entries · head_dim times. It reads the
/// keys twice for every 128 rows of a kv head, the second time in part from the cache of the device, takes two
/// exponentials a score, and writes 4 bytes an entry, query head and sum.
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
