//! Decode attention in splits, so that one sequence keeps a whole device busy: each cube goes through a part of the
//! keys of a head and leaves a maximum, a sum of weights and a weighted sum of values; a second kernel puts them
//! together, always in the same order, and turns scores into weights.

pub(crate) mod mma;
mod portable;
mod softmax;

use briquette_ops::Result;
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{kernel::into_contiguous, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::{
    prelude::{Client, CubeCount, CubeDim},
    zspace::{metadata::Metadata, strides},
};

use self::{portable::Form, softmax::MOST_HEADS};
pub(crate) use self::{
    portable::{fill_weights, write_head},
    softmax::{LOWEST, Running, UNITS},
};
use crate::{
    attention::decode::merge,
    common::{check::Check, processors::processors},
};

/// Channels a head at most: what the kernel that puts splits together takes.
const MOST_CHANNELS: usize = merge::UNITS;

/// Numbers of queries that one unit keeps in registers.
const QUERIES_A_UNIT: usize = 64;

/// Numbers that parts of scores are put together in: 8 KiB, half of what WebGPU grants a cube.
const SCRATCH: usize = 2048;

/// Cubes a multiprocessor that hide each other's loads.
const CUBES_A_PROCESSOR: usize = 8;

/// Cubes of [`mma`] that a multiprocessor has registers for.
const PLANE_CUBES_A_PROCESSOR: usize = 2;

/// Splits of a head at most, of its tokens and once more of its tail: half of what can be put together.
const MOST_SPLITS: usize = merge::MOST_PARTS / 2;

/// Tensors of the kernel that has most.
const TENSORS: usize = 16;

/// The dimensions of a decode step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) batch: usize,
    pub(crate) query_heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// Those of queries and keys of a tail of these shapes.
    pub(crate) fn of(queries: &Shape, tail_keys: &Shape) -> Self {
        Self {
            batch: queries[0],
            query_heads: queries[1],
            kv_heads: tail_keys[1],
            head_dim: queries[3],
        }
    }

    /// Query heads a kv head.
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// Query heads that one cube serves, at most `most`, and how many cubes a kv head needs for that.
    pub(crate) fn blocks(&self, most: usize) -> (usize, usize) {
        let blocks = self.group().div_ceil(most.min(MOST_HEADS));
        (self.group().div_ceil(blocks), blocks)
    }

    /// Refuses what no split of these heads could be launched for.
    pub(crate) fn check(&self, check: &Check) -> Result<()> {
        let Self { batch, query_heads, kv_heads, head_dim } = *self;
        let grouped = kv_heads > 0 && query_heads > 0 && query_heads.is_multiple_of(kv_heads);
        check.value("query_heads", query_heads, grouped, format!("a multiple of {kv_heads}"))?;
        check.value("batch", batch, batch > 0, "at least 1")?;
        check.value("head_dim", head_dim, head_dim > 0, "at least 1")?;
        check.at_most("head_dim", head_dim, MOST_CHANNELS)?;
        check.tensors(TENSORS)?;
        let cubes = batch * query_heads + wanted_cubes(check.client());
        check.cubes([cubes, 1, 1])?;
        check.cubes([1, query_heads, batch])
    }
}

/// Cubes that keep a device busy.
fn wanted_cubes(client: &Client) -> usize {
    CUBES_A_PROCESSOR * processors(client)
}

/// How the keys of a head are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) splits: usize,
    /// Rows a split.
    pub(crate) chunk: usize,
}

impl Plan {
    /// Splits heads of at most `longest` rows, which are read in tiles, between cubes of which each split of all
    /// heads needs `cubes`.
    pub(crate) fn new(longest: usize, tile: usize, cubes: usize, client: &Client) -> Self {
        Self::of(longest, tile, wanted_cubes(client).div_ceil(cubes).min(MOST_SPLITS))
    }

    fn of(longest: usize, tile: usize, wanted: usize) -> Self {
        let tiles = longest.div_ceil(tile).max(1);
        let chunk = tiles.div_ceil(wanted.min(tiles));
        Self { splits: tiles.div_ceil(chunk), chunk: chunk * tile }
    }
}

/// How the tiles of a head are split between cubes of [`mma`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlanePlan {
    pub(crate) splits: usize,
    /// Tiles a split.
    pub(crate) share: usize,
}

impl PlanePlan {
    /// Splits heads of at most `tiles` tiles between cubes of so many planes.
    pub(crate) fn new(tiles: usize, planes: usize, heads: Heads, client: &Client) -> Self {
        let blocks = heads.group().div_ceil(self::mma::HEADS);
        let cubes = heads.batch * heads.kv_heads * blocks;
        Self::of(tiles, planes, PLANE_CUBES_A_PROCESSOR * processors(client) / cubes)
    }

    /// All cubes run at once, if there are not more heads: at most `wanted` splits.
    fn of(tiles: usize, planes: usize, wanted: usize) -> Self {
        let steps = tiles.div_ceil(planes).max(1);
        let share = steps.div_ceil(wanted.clamp(1, MOST_SPLITS));
        Self { splits: steps.div_ceil(share), share: share * planes }
    }
}

/// What cubes leave for [`merge`], f32, `[batch · query_heads, splits, head_dim + 2]`: weighted sums of values, behind
/// them the sum of weights and the maximum of scores that they are relative to.
pub(crate) fn parts(like: &CubeTensor, heads: Heads, splits: usize) -> CubeTensor {
    let Heads { batch, query_heads, head_dim, .. } = heads;
    empty(like, [batch * query_heads, splits, head_dim + 2], DType::F32)
}

/// A new tensor on the device of another.
pub(crate) fn empty<const D: usize>(
    like: &CubeTensor,
    shape: [usize; D],
    dtype: DType,
) -> CubeTensor {
    empty_device_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// The shape of weights, `[batch, query_heads, columns]`, or of one number where they are not wanted.
pub(crate) fn weight_shape(heads: Heads, columns: usize, wanted: bool) -> [usize; 3] {
    if wanted { [heads.batch, heads.query_heads, columns] } else { [1, 1, 1] }
}

/// Puts splits together. `weights` hold scores before and weights after.
pub(crate) fn merge(
    parts: CubeTensor,
    output: &CubeTensor,
    weights: &CubeTensor,
    heads: Heads,
    wanted: bool,
) {
    let Heads { batch, query_heads, kv_heads, head_dim } = heads;
    let columns = weights.shape()[2];
    let blocks = if wanted { columns.div_ceil(merge::WEIGHTS) } else { 1 };
    // One query a head.
    let strides = weights.meta.strides();
    let by_query = Metadata::new(
        Shape::from([batch, query_heads, 1, columns]),
        strides![strides[0], strides[1], strides[1], strides[2]],
    );
    let by_query = CubeTensor { meta: Box::new(by_query), ..weights.clone() };
    let types = [output.dtype, DType::I32].map(dtype_to_storage_type);
    merge::decode_merge::launch(
        &weights.client,
        CubeCount::Static((batch * query_heads) as u32, blocks as u32, 1),
        CubeDim::new_1d(merge::UNITS as u32),
        parts.clone().into_tensor_arg(),
        parts.as_tensor_alias(0),
        output.clone().into_tensor_arg(),
        by_query.into_tensor_arg(),
        kv_heads,
        columns,
        head_dim,
        false,
        wanted,
        types,
    );
}

/// Refuses weights of more columns than [`merge`] can launch cubes for.
pub(crate) fn check_columns(check: &Check, heads: Heads, columns: usize) -> Result<()> {
    let Heads { batch, query_heads, .. } = heads;
    check.cubes([1, columns.div_ceil(merge::WEIGHTS), 1])?;
    check.countable("weights", &[batch, query_heads, columns])
}

/// The tensor with the numbers of a row beside each other.
pub(crate) fn with_dense_rows(x: CubeTensor) -> CubeTensor {
    let last = x.meta.strides().len() - 1;
    if x.meta.strides()[last] == 1 || x.shape()[last] == 1 { x } else { into_contiguous(x) }
}

/// Numbers of a vector that divides `numbers` and that rows of all these tensors are made of.
fn vector_width(tensors: &[&CubeTensor], size: usize, numbers: usize) -> usize {
    let Some(client) = tensors.first().map(|tensor| &tensor.client) else { return 1 };
    let widest = client.properties().hardware.max_vector_size;
    let fits = |width: usize| {
        let aligned = |x: &&CubeTensor| {
            let last = x.meta.strides().len() - 1;
            let strides = x.meta.strides().iter().zip(x.meta.shape().iter());
            let mut others = strides.take(last);
            others.all(|(stride, size)| *size == 1 || stride.is_multiple_of(width))
        };
        width <= widest && numbers.is_multiple_of(width) && tensors.iter().all(aligned)
    };
    client.io_optimized_vector_sizes(size).find(|&width| fits(width)).unwrap_or(1)
}

impl Form {
    fn new(heads: Heads, encoded: bool, width: usize, members: bool, wanted: bool) -> Self {
        let head_dim = heads.head_dim;
        let (of_cube, blocks) = heads.blocks(4);
        let halves = if encoded { 2 } else { 1 };
        let half = head_dim / halves / width;
        // Vectors that a unit can hold of all queries; more than two, and few units share a row.
        let most = (QUERIES_A_UNIT / (width * halves * of_cube)).clamp(1, 2);
        let lanes = half.div_ceil(most).next_power_of_two().min(UNITS);
        let vectors = half.div_ceil(lanes);
        let row = head_dim / width;
        let value_lanes = row.min(UNITS);
        let largest = SCRATCH / (lanes * of_cube);
        let tile = if largest >= UNITS { UNITS } else { (largest + 1).next_power_of_two() / 2 };
        Self {
            head_dim,
            heads: of_cube,
            blocks,
            encoded,
            width,
            lanes,
            vectors,
            tile: tile.max(UNITS / lanes),
            value_lanes,
            value_vectors: row.div_ceil(value_lanes),
            members,
            wanted,
        }
    }
}

/// Entries that tokens share.
#[derive(Clone)]
pub(crate) struct Members {
    /// `[entries, head_dim]`
    pub(crate) directions: CubeTensor,
    /// `[entries, head_dim]`
    pub(crate) values: CubeTensor,
    /// Columns in the order of their entries, `[batch, kv_heads, width]`.
    pub(crate) members: CubeTensor,
    /// The entry of each column, counted from the first of its head, `[batch, kv_heads, width]`.
    pub(crate) entry: CubeTensor,
    /// What the direction of each column's key is multiplied by, f32, `[batch, kv_heads, width]`.
    pub(crate) norms: CubeTensor,
    /// Where the entries of each batch row and kv head begin, and where the last end, `[batch · kv_heads + 1]`.
    pub(crate) offsets: CubeTensor,
}

/// How keys are encoded.
pub(crate) struct Turn {
    /// `[positions, head_dim / 2]`
    pub(crate) cosines: CubeTensor,
    /// `[positions, head_dim / 2]`
    pub(crate) sines: CubeTensor,
    /// At which position each column is encoded, `[batch, kv_heads or 1, columns]`.
    pub(crate) positions: CubeTensor,
}

/// A launch of [`portable::rows`].
pub(crate) struct Rows {
    /// `[batch, query_heads, 1, head_dim]`
    pub(crate) queries: CubeTensor,
    /// `None`: the tail alone.
    pub(crate) members: Option<Members>,
    /// How many columns before the tail are fillers of each batch row and kv head; without members, how many rows of the
    /// tail stand before those that are entries of each. `[batch · kv_heads]`
    pub(crate) starts: CubeTensor,
    pub(crate) turn: Option<Turn>,
    /// `[batch, kv_heads, capacity, head_dim]`
    pub(crate) tail_keys: CubeTensor,
    /// `[batch, kv_heads, capacity, head_dim]`
    pub(crate) tail_values: CubeTensor,
    /// Rows of the tail.
    pub(crate) tail: usize,
    /// Columns of the weights: those of the longest head, the tail last.
    pub(crate) columns: usize,
    pub(crate) scale: f32,
    pub(crate) wanted: bool,
}

impl Rows {
    /// Goes through the rows of all heads, of which the longest has `longest`. `parts` makes room for as many splits
    /// as it is told, behind those of another kernel, and says how many these are.
    pub(crate) fn launch(
        self,
        heads: Heads,
        longest: usize,
        weights: &CubeTensor,
        parts: impl FnOnce(usize) -> (CubeTensor, usize),
    ) -> CubeTensor {
        let Self { starts, tail, columns, scale, wanted, .. } = self;
        let client = self.queries.client.clone();
        let dtype = self.tail_keys.dtype;
        let queries = with_dense_rows(self.queries);
        let [tail_keys, tail_values] = [self.tail_keys, self.tail_values].map(with_dense_rows);
        let nothing = |dtype| empty(&queries, [1, 1, 16], dtype);
        let with_members = self.members.is_some();
        let encoded = self.turn.is_some();
        let Members { directions, values, members, entry, norms, offsets } =
            self.members.unwrap_or_else(|| Members {
                directions: nothing(dtype),
                values: nothing(dtype),
                members: nothing(starts.dtype),
                entry: nothing(starts.dtype),
                norms: nothing(DType::F32),
                offsets: nothing(starts.dtype),
            });
        let Turn { cosines, sines, positions } = self.turn.unwrap_or_else(|| Turn {
            cosines: nothing(DType::F32),
            sines: nothing(DType::F32),
            positions: nothing(starts.dtype),
        });
        let [directions, values, cosines, sines] =
            [directions, values, cosines, sines].map(with_dense_rows);
        let half = if encoded { heads.head_dim / 2 } else { heads.head_dim };
        let rows = [&queries, &directions, &values, &cosines, &sines, &tail_keys, &tail_values];
        let width = vector_width(&rows, dtype.size(), half);
        let form = Form::new(heads, encoded, width, with_members, wanted);

        let cubes = heads.batch * heads.kv_heads * form.blocks;
        let plan = Plan::new(longest, form.tile, cubes, &client);
        let (parts, first_split) = parts(plan.splits);
        let types = [queries.dtype, dtype, cosines.dtype, starts.dtype].map(dtype_to_storage_type);
        portable::rows::launch(
            &client,
            CubeCount::Static((cubes * plan.splits) as u32, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            width,
            queries.into_tensor_arg(),
            directions.into_tensor_arg(),
            values.into_tensor_arg(),
            members.into_tensor_arg(),
            entry.into_tensor_arg(),
            norms.into_tensor_arg(),
            starts.into_tensor_arg(),
            offsets.into_tensor_arg(),
            positions.into_tensor_arg(),
            cosines.into_tensor_arg(),
            sines.into_tensor_arg(),
            tail_keys.into_tensor_arg(),
            tail_values.into_tensor_arg(),
            parts.clone().into_tensor_arg(),
            weights.clone().into_tensor_arg(),
            heads.query_heads,
            heads.kv_heads,
            columns,
            tail,
            plan.chunk,
            plan.splits,
            first_split,
            scale,
            form,
            types,
        );
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_all_rows_and_no_split_is_empty() {
        for (longest, tile, wanted) in
            [(0, 64, 9), (1, 64, 1), (64, 64, 5), (65, 64, 5), (1024, 64, 5), (1000, 32, 132)]
        {
            let Plan { splits, chunk } = Plan::of(longest, tile, wanted);
            assert!(chunk.is_multiple_of(tile) && splits * chunk >= longest);
            assert!(splits <= wanted.max(1) && (splits - 1) * chunk <= longest);
        }
        assert_eq!(Plan::of(1024, 64, 5), Plan { splits: 4, chunk: 256 });
    }

    #[test]
    fn shares_of_planes_cover_all_tiles() {
        for (tiles, wanted) in [(0, 3), (1, 0), (64, 1), (65, 2), (2048, 33), (7, 1000)] {
            let PlanePlan { splits, share } = PlanePlan::of(tiles, 4, wanted);
            assert!(splits * share >= tiles && (splits - 1) * share <= tiles);
            assert!((1..=wanted.clamp(1, MOST_SPLITS)).contains(&splits));
        }
    }

    /// WebGPU grants 16 KiB.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for head_dim in 1..=MOST_CHANNELS {
            for group in [1, 2, 3, 4, 5, 8, 32, 71] {
                for width in [1, 2, 4, 8].into_iter().filter(|width| head_dim % width == 0) {
                    for encoded in [false, head_dim % (2 * width) == 0] {
                        let heads = Heads { batch: 1, query_heads: group, kv_heads: 1, head_dim };
                        let form = Form::new(heads, encoded, width, true, true);
                        assert!(form.shared_bytes() <= 16384, "{form:?}");
                        assert!(form.tile <= UNITS && form.tile >= UNITS / form.lanes);
                        assert!(form.heads * form.blocks >= group);
                    }
                }
            }
        }
    }
}
