//! Decode attention in splits, so that one sequence keeps a whole device busy: each cube goes
//! through a part of the keys of a head and leaves a maximum, a sum of weights and a weighted sum
//! of values; a second kernel puts them together, always in the same order, and turns scores into
//! weights.

mod geometry;
pub(crate) mod mma;
pub(crate) mod operands;
mod portable;
mod softmax;

use briquette_ops::Result;
use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{
    CubeBackend, kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};
use cubecl::{
    prelude::{Client, CubeCount, CubeDim, CubePrimitive},
    zspace::{metadata::Metadata, strides},
};

pub(crate) use self::{
    geometry::{SplitCounts, SplitCountsLaunch, cube_split},
    portable::{fill_weights, write_head},
    softmax::{Running, UNITS},
};
use self::{
    mma::PlaneOutputsLaunch,
    operands::{Clusters, Rotary, RotaryArgsLaunch, TailTensors, key_values},
    portable::RowBlueprint,
    softmax::MOST_HEADS,
};
use crate::{
    attention::{decode::merge, scoring::Scores},
    common::{check::Check, processors::processors},
};

/// Most channels of a head: as many as the kernel that merges splits takes.
const MOST_CHANNELS: usize = merge::UNITS;

/// Numbers of queries that one unit keeps in registers.
const QUERIES_A_UNIT: usize = 64;

/// Numbers that parts of scores are put together in: 8 KiB, half of what WebGPU grants a cube.
const SCRATCH: usize = 2048;

/// Cubes per multiprocessor that hide each other's loads.
const CUBES_A_PROCESSOR: usize = 8;

/// Cubes of [`mma`] that a multiprocessor has registers for.
const PLANE_CUBES_A_PROCESSOR: usize = 2;

/// Most splits of the tokens of a head, and as many of its tail: half of what can be merged.
const MOST_SPLITS: usize = merge::MOST_PARTS / 2;

/// Number of tensors of the kernel that has most.
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
    /// Dimensions of queries and keys of a tail of these shapes.
    pub(crate) fn of(queries: &Shape, tail_keys: &Shape) -> Self {
        Self {
            batch: queries[0],
            query_heads: queries[1],
            kv_heads: tail_keys[1],
            head_dim: queries[3],
        }
    }

    /// Query heads per kv head.
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// These as an argument of a kernel that has so many splits of each kv head.
    pub(crate) fn counts(&self, splits: usize) -> SplitCountsLaunch {
        SplitCountsLaunch::new(self.query_heads, self.kv_heads, splits)
    }

    /// Query heads per cube, at most `most`, and cubes per kv head.
    pub(crate) fn blocks(&self, most: usize) -> (usize, usize) {
        let blocks = self.group().div_ceil(most.min(MOST_HEADS));
        (self.group().div_ceil(blocks), blocks)
    }

    /// Refuses dimensions for which no split could be launched.
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

/// Number of cubes that keep a device busy.
fn wanted_cubes(client: &Client) -> usize {
    CUBES_A_PROCESSOR * processors(client)
}

/// Geometry of the splits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitPlan {
    pub(crate) splits: usize,
    /// Length of a split, in rows, pages or tiles as the length of the head.
    pub(crate) share: usize,
}

impl SplitPlan {
    /// Splits heads of at most `longest` rows, which are read in tiles, between cubes of which
    /// each split of all heads needs `cubes`.
    pub(crate) fn of_rows(longest: usize, tile: usize, cubes: usize, client: &Client) -> Self {
        Self::new(longest, tile, wanted_cubes(client).div_ceil(cubes))
    }

    /// Splits heads of at most `tiles` tiles between cubes of [`mma`] of so many planes. All cubes
    /// run at once, if there are not more heads.
    pub(crate) fn of_tiles(tiles: usize, planes: usize, heads: Heads, client: &Client) -> Self {
        let blocks = heads.group().div_ceil(self::mma::HEADS);
        let cubes = heads.batch * heads.kv_heads * blocks;
        Self::new(tiles, planes, PLANE_CUBES_A_PROCESSOR * processors(client) / cubes)
    }

    /// Divides a length into at most `wanted` splits, each a number of whole steps.
    fn new(length: usize, step: usize, wanted: usize) -> Self {
        let steps = length.div_ceil(step).max(1);
        let of_split = steps.div_ceil(wanted.clamp(1, MOST_SPLITS));
        Self { splits: steps.div_ceil(of_split), share: of_split * step }
    }
}

/// Buffer of the parts that cubes write and [`merge`] reads, f32,
/// `[batch · query_heads, splits, part_width(head_dim)]`.
pub(crate) fn parts(like: &CubeTensor, heads: Heads, splits: usize) -> CubeTensor {
    let Heads { batch, query_heads, head_dim, .. } = heads;
    empty(like, [batch * query_heads, splits, merge::part_width(head_dim)], DType::F32)
}

/// Outputs of a kernel of [`mma`]. Without parts the weights stand in, at this place among its
/// tensors.
pub(crate) fn plane_outputs<E: CubePrimitive>(
    output: &CubeTensor,
    weights: &CubeTensor,
    weights_place: usize,
    parts: Option<&CubeTensor>,
) -> PlaneOutputsLaunch<E> {
    let parts = match parts {
        Some(parts) => parts.clone().into_tensor_arg(),
        None => weights.as_tensor_alias(weights_place),
    };
    PlaneOutputsLaunch::new(
        weights.clone().into_tensor_arg(),
        parts,
        output.clone().into_tensor_arg(),
    )
}

/// New tensor on the device of another, without gaps between its rows: who adds weights up looks at
/// them in another shape.
pub(crate) fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// Shape of weights, `[batch, query_heads, columns]`, or of one number where they are not wanted.
pub(crate) fn weight_shape(heads: Heads, columns: usize, wanted: bool) -> [usize; 3] {
    if wanted { [heads.batch, heads.query_heads, columns] } else { [1, 1, 1] }
}

/// New tensors for the output of queries and for their weights.
pub(crate) fn outputs(
    queries: &CubeTensor,
    heads: Heads,
    columns: usize,
    wanted: bool,
) -> (CubeTensor, CubeTensor) {
    let Heads { batch, query_heads, head_dim, .. } = heads;
    let output = empty(queries, [batch, query_heads, 1, head_dim], queries.dtype);
    let weights = empty(queries, weight_shape(heads, columns, wanted), DType::F32);
    (output, weights)
}

/// Merges splits, and sinks. `weights` are scores before and weights after.
pub(crate) fn merge(
    parts: CubeTensor,
    output: &CubeTensor,
    weights: &CubeTensor,
    heads: Heads,
    scores: Scores<CubeBackend>,
    wanted: bool,
) {
    let Heads { batch, query_heads, kv_heads, head_dim } = heads;
    let (scoring, score_kinds) = scores.into_arg();
    let columns = weights.shape()[2];
    let blocks = if wanted { columns.div_ceil(merge::WEIGHTS) } else { 1 };
    // One query per head.
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
        parts.clone().into_buffer_arg(),
        parts.as_tensor_alias(0),
        output.clone().into_buffer_arg(),
        by_query.into_tensor_arg(),
        parts.shape()[1],
        query_heads,
        kv_heads,
        1,
        columns,
        scoring,
        head_dim,
        score_kinds.sinks,
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

/// The tensor with the numbers of each row contiguous.
pub(crate) fn with_dense_rows(x: CubeTensor) -> CubeTensor {
    let last = x.meta.strides().len() - 1;
    if x.meta.strides()[last] == 1 || x.shape()[last] == 1 { x } else { into_contiguous(x) }
}

/// Size of the largest vector that divides `numbers` and the rows of all these tensors.
pub(crate) fn vector_width(tensors: &[&CubeTensor], size: usize, numbers: usize) -> usize {
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

impl RowBlueprint {
    fn new(heads: Heads, encoded: bool, width: usize, by_cluster: bool, wanted: bool) -> Self {
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
            by_cluster,
            wanted,
        }
    }
}

/// Launch of [`portable::rows`].
pub(crate) struct RowLaunch {
    /// `[batch, query_heads, 1, head_dim]`
    pub(crate) queries: CubeTensor,
    /// Number of padding columns before the tail, per batch row and kv head; without clusters, of
    /// padding rows at the beginning of the tail. `[batch · kv_heads]`
    pub(crate) starts: CubeTensor,
    pub(crate) rotary: Rotary<CubeBackend>,
    pub(crate) tail: TailTensors<CubeBackend>,
    /// Columns of the weights: those of the longest head, the tail last.
    pub(crate) columns: usize,
    pub(crate) scores: Scores<CubeBackend>,
    pub(crate) wanted: bool,
}

impl RowLaunch {
    /// Launches the kernel over the rows of all heads, of which the longest has `longest`: those of
    /// clusters, if there are any, and the tail. `parts` makes a buffer for so many splits behind
    /// those of another kernel, and says how many those are.
    pub(crate) fn launch(
        self,
        clusters: Option<Clusters<CubeBackend>>,
        heads: Heads,
        longest: usize,
        weights: &CubeTensor,
        parts: impl FnOnce(usize) -> (CubeTensor, usize),
    ) -> CubeTensor {
        let Self { queries, starts, rotary, tail, columns, scores, wanted } = self;
        let TailTensors { keys, values: tail_values, entries: tail } = tail;
        let client = queries.client.clone();
        let dtype = keys.dtype;
        let [queries, tail_keys, tail_values] = [queries, keys, tail_values].map(with_dense_rows);
        let nothing = |dtype| empty(&queries, [1, 1, 16], dtype);
        let by_cluster = clusters.is_some();
        let mut clusters = clusters.unwrap_or_else(|| Clusters {
            directions: nothing(dtype),
            values: nothing(dtype),
            tokens_by_cluster: nothing(starts.dtype),
            cluster_of_token: nothing(starts.dtype),
            norms: nothing(DType::F32),
            offsets: nothing(starts.dtype),
        });
        let (encoded, cosines, sines, positions) = match rotary {
            Rotary::Tables { cosines, sines, positions } => (true, cosines, sines, positions),
            Rotary::Nothing => {
                (false, nothing(DType::F32), nothing(DType::F32), nothing(starts.dtype))
            }
        };
        clusters.directions = with_dense_rows(clusters.directions);
        clusters.values = with_dense_rows(clusters.values);
        let [cosines, sines] = [cosines, sines].map(with_dense_rows);
        let half = if encoded { heads.head_dim / 2 } else { heads.head_dim };
        let Clusters { directions, values, .. } = &clusters;
        let rows = [&queries, directions, values, &cosines, &sines, &tail_keys, &tail_values];
        let width = vector_width(&rows, dtype.size(), half);
        let blueprint = RowBlueprint::new(heads, encoded, width, by_cluster, wanted);

        let cubes = heads.batch * heads.kv_heads * blueprint.blocks;
        let plan = SplitPlan::of_rows(longest, blueprint.tile, cubes, &client);
        let (parts, first_split) = parts(plan.splits);
        let types = [queries.dtype, dtype, cosines.dtype, starts.dtype].map(dtype_to_storage_type);
        portable::rows::launch(
            &client,
            CubeCount::Static((cubes * plan.splits) as u32, 1, 1),
            CubeDim::new_1d(UNITS as u32),
            width,
            queries.into_tensor_arg(),
            clusters.into_arg(),
            starts.into_tensor_arg(),
            RotaryArgsLaunch::new(
                cosines.into_tensor_arg(),
                sines.into_tensor_arg(),
                positions.into_tensor_arg(),
            ),
            key_values(tail_keys, tail_values),
            parts.clone().into_tensor_arg(),
            weights.clone().into_tensor_arg(),
            heads.counts(plan.splits),
            columns,
            tail,
            plan.share,
            first_split,
            scores.arg_without_heads(),
            blueprint,
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
        for (longest, tile, wanted) in [
            (0, 64, 9),
            (1, 64, 1),
            (64, 64, 5),
            (65, 64, 5),
            (1024, 64, 5),
            (1000, 32, 132),
            (1, 4, 0),
            (65, 4, 2),
            (2048, 4, 33),
            (7, 4, 1000),
        ] {
            let SplitPlan { splits, share } = SplitPlan::new(longest, tile, wanted);
            assert!(share.is_multiple_of(tile) && splits * share >= longest);
            assert!((splits - 1) * share <= longest);
            assert!((1..=wanted.clamp(1, MOST_SPLITS)).contains(&splits));
        }
        assert_eq!(SplitPlan::new(1024, 64, 5), SplitPlan { splits: 4, share: 256 });
    }

    /// WebGPU grants 16 KiB.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for head_dim in 1..=MOST_CHANNELS {
            for group in [1, 2, 3, 4, 5, 8, 32, 71] {
                for width in [1, 2, 4, 8].into_iter().filter(|width| head_dim % width == 0) {
                    for encoded in [false, head_dim % (2 * width) == 0] {
                        let heads = Heads { batch: 1, query_heads: group, kv_heads: 1, head_dim };
                        let blueprint = RowBlueprint::new(heads, encoded, width, true, true);
                        assert!(blueprint.shared_bytes() <= 16384, "{blueprint:?}");
                        assert!(
                            blueprint.tile <= UNITS && blueprint.tile >= UNITS / blueprint.lanes
                        );
                        assert!(blueprint.heads * blueprint.blocks >= group);
                    }
                }
            }
        }
    }
}
