use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{
    fp8::{self, Fp8Blueprint},
    fp8_mma::{self, Fp8MmaBlueprint},
    mma::{self, QuantizedMmaBlueprint},
    operands::{Numbers, PackedTensors, Pages, VectorTensors},
    portable::{self, QuantizedBlueprint},
};
use crate::{
    attention::decode::split::{
        self, Heads, RowLaunch, SplitPlan, UNITS,
        mma::{HEADS, TILE},
        operands::{Rotary, TailTensors},
    },
    common::tile::support::{is_chunked, multiplies},
};

/// Most numbers of the queries of a cube in shared memory.
const MOST_QUERIES: usize = 1024;
/// Most scores of a head in a tile.
pub(super) const MOST_SCORES: usize = 512;

/// Planes of a cube on tensor cores, of which a multiprocessor has registers for two.
const PLANES: usize = 4;

/// Sums of products that one unit keeps in registers.
const SUMS_A_UNIT: usize = 64;

impl QuantizedBlueprint {
    fn new(heads: Heads, bits: usize, group: usize, value_groups: usize, wanted: bool) -> Self {
        let head_dim = heads.head_dim;
        let word = 32 / bits;
        let pages = (UNITS / group).max(1);
        let most = (SUMS_A_UNIT / word)
            .min(MOST_QUERIES / head_dim)
            .min(MOST_SCORES / (pages * group))
            .max(1);
        let (of_cube, blocks) = heads.blocks(most);
        let jobs = (pages * group / word).min(UNITS);
        let lanes = (UNITS / jobs + 1).next_power_of_two() / 2;
        let row = head_dim.div_ceil(word);
        let value_lanes = row.min(UNITS);
        Self {
            head_dim,
            heads: of_cube,
            blocks,
            bits,
            group,
            value_group: head_dim / value_groups,
            pages,
            lanes,
            value_lanes,
            value_words: row.div_ceil(value_lanes),
            wanted,
        }
    }
}

/// Input of a launch: queries, and the pages and the tail that they attend to.
pub(super) struct QuantizedProblem {
    pub(super) queries: CubeTensor,
    pub(super) pages: Pages<CubeBackend>,
    pub(super) tail: TailTensors<CubeBackend>,
    pub(super) scale: f32,
    pub(super) wanted: bool,
}

impl Numbers<CubeBackend> {
    /// These with the numbers of a row beside each other.
    fn with_dense_rows(self) -> Self {
        let dense = split::with_dense_rows;
        match self {
            Self::Levels { keys, values, bits } => {
                let [keys, values] = [keys, values].map(|packed| PackedTensors {
                    words: dense(packed.words),
                    scale: dense(packed.scale),
                    min: dense(packed.min),
                });
                Self::Levels { keys, values, bits }
            }
            Self::Fp8 { keys, values } => {
                let [keys, values] = [keys, values].map(|vectors| VectorTensors {
                    words: dense(vectors.words),
                    scale: dense(vectors.scale),
                });
                Self::Fp8 { keys, values }
            }
        }
    }
}

/// Returns output and weights.
pub(super) fn launch(problem: QuantizedProblem) -> (CubeTensor, CubeTensor) {
    let QuantizedProblem { queries, pages, tail, scale, wanted } = problem;
    let heads = Heads::of(&queries.shape(), &tail.keys.shape());
    let weights = split::weight_shape(heads, pages.columns, wanted);
    let weights = split::empty_weights(&queries, weights);
    let Heads { batch, query_heads, head_dim, .. } = heads;
    let output = split::empty(&queries, [batch, query_heads, 1, head_dim], queries.dtype);
    let pages = Pages { numbers: pages.numbers.with_dense_rows(), ..pages };
    let problem = QuantizedProblem { queries, pages, tail, scale, wanted };
    let parts = if on_planes(&problem, heads) {
        launch_planes(problem, heads, &output, &weights)
    } else {
        Some(launch_portable(problem, heads, &weights))
    };
    if let Some(parts) = parts {
        split::merge(parts, &output, &weights, heads, wanted);
    }
    (output, weights)
}

/// Returns parts of the output.
fn launch_portable(problem: QuantizedProblem, heads: Heads, weights: &CubeTensor) -> CubeTensor {
    let QuantizedProblem { queries, pages, tail, scale, wanted } = problem;
    let Pages { numbers, list, offsets, tail_padding, group, most_pages, columns } = pages;
    let client = queries.client.clone();
    let entries = tail.entries;
    // Splits of pages that are read so many at a time, cubes of them, and parts of all splits, in
    // which those of the tail are.
    let split = |pages, blocks| {
        let cubes = heads.batch * heads.kv_heads * blocks;
        let plan = SplitPlan::of_rows(most_pages, pages, cubes, &client);
        let count = CubeCount::Static((cubes * plan.splits) as u32, 1, 1);
        if entries == 0 {
            return (plan, count, split::parts(&queries, heads, plan.splits));
        }
        let rows = RowLaunch {
            queries: queries.clone(),
            clusters: None,
            starts: tail_padding.clone(),
            rotary: Rotary::Nothing,
            tail,
            columns,
            scale,
            wanted,
        };
        let parts = rows.launch(heads, entries, weights, |splits| {
            (split::parts(&queries, heads, plan.splits + splits), plan.splits)
        });
        (plan, count, parts)
    };
    let cube = CubeDim::new_1d(UNITS as u32);
    match numbers {
        Numbers::Levels { keys, values, bits } => {
            let value_groups = values.scale.shape()[1] / group;
            let blueprint = QuantizedBlueprint::new(heads, bits, group, value_groups, wanted);
            let (plan, cubes, parts) = split(blueprint.pages, blueprint.blocks);
            let types = [queries.dtype, keys.scale.dtype, list.dtype, keys.words.dtype];
            portable::pages::launch(
                &client,
                cubes,
                cube,
                queries.into_tensor_arg(),
                keys.words.into_tensor_arg(),
                keys.scale.into_tensor_arg(),
                keys.min.into_tensor_arg(),
                values.words.into_tensor_arg(),
                values.scale.into_tensor_arg(),
                values.min.into_tensor_arg(),
                list.into_tensor_arg(),
                offsets.into_tensor_arg(),
                tail_padding.into_tensor_arg(),
                parts.clone().into_tensor_arg(),
                weights.clone().into_tensor_arg(),
                heads.query_heads,
                heads.kv_heads,
                columns,
                entries,
                plan.share,
                plan.splits,
                scale,
                blueprint,
                types.map(dtype_to_storage_type),
            );
            parts
        }
        Numbers::Fp8 { keys, values } => {
            let row = heads.head_dim.div_ceil(fp8::WORD);
            let words = [&keys.words, &values.words];
            let widest = split::vector_width(&words, keys.words.dtype.size(), row);
            let blueprint = Fp8Blueprint::new(heads, group, widest, wanted);
            let (plan, cubes, parts) = split(blueprint.pages(), blueprint.blocks);
            let types = [queries.dtype, keys.scale.dtype, list.dtype, keys.words.dtype];
            fp8::fp8_pages::launch(
                &client,
                cubes,
                cube,
                blueprint.width,
                queries.into_tensor_arg(),
                keys.words.into_tensor_arg(),
                keys.scale.into_tensor_arg(),
                values.words.into_tensor_arg(),
                values.scale.into_tensor_arg(),
                list.into_tensor_arg(),
                offsets.into_tensor_arg(),
                tail_padding.into_tensor_arg(),
                parts.clone().into_tensor_arg(),
                weights.clone().into_tensor_arg(),
                heads.query_heads,
                heads.kv_heads,
                columns,
                entries,
                plan.share,
                plan.splits,
                scale,
                blueprint,
                types.map(dtype_to_storage_type),
            );
            parts
        }
    }
}

/// Whether tensor cores take these pages.
fn on_planes(problem: &QuantizedProblem, heads: Heads) -> bool {
    let QuantizedProblem { queries, pages, tail, .. } = problem;
    let Pages { numbers, group, .. } = pages;
    let dtype = queries.dtype;
    // Pages are rows of words of 32 bits, of which some are read four at a time.
    let wide =
        |words: &CubeTensor| words.meta.strides()[0].is_multiple_of(4) || words.shape()[0] == 1;
    let (words, scale, fits) = match numbers {
        Numbers::Levels { keys, values, bits } => {
            let of_values = heads.head_dim * group / values.scale.shape()[1];
            let fits = matches!(bits, 2 | 4)
                && of_values == mma::GROUP
                && wide(&keys.words)
                && is_chunked(&keys.scale)
                && is_chunked(&keys.min);
            ([&keys.words, &values.words], &keys.scale, fits)
        }
        Numbers::Fp8 { keys, values } => {
            let fits = wide(&keys.words) && wide(&values.words);
            ([&keys.words, &values.words], &keys.scale, fits)
        }
    };
    fits && words[0].dtype.size() == 4
        && words[1].dtype == words[0].dtype
        && *group == mma::GROUP
        && heads.head_dim.is_multiple_of(64)
        && multiplies(&queries.client, dtype, heads.head_dim)
        && (scale.dtype, tail.keys.dtype) == (dtype, dtype)
        && is_chunked(&tail.keys)
        && is_chunked(&tail.values)
}

/// Writes the output, or returns parts of it.
fn launch_planes(
    problem: QuantizedProblem,
    heads: Heads,
    output: &CubeTensor,
    weights: &CubeTensor,
) -> Option<CubeTensor> {
    let QuantizedProblem { queries, pages, tail, scale, wanted } = problem;
    let TailTensors { keys: tail_keys, values: tail_values, entries: tail } = tail;
    let Pages { numbers, list, offsets, tail_padding, most_pages, columns, .. } = pages;
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // A page is a tile, and as much work as two of the tail.
    let tiles = most_pages + tail.div_ceil(TILE);
    let plan = SplitPlan::of_tiles(tiles, PLANES, heads, &client);
    let whole = plan.splits == 1 && !wanted;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    let brain = dtype == DType::BF16;
    let cubes = CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32);
    let cube = CubeDim::new_1d(32 * PLANES as u32);
    // Without parts the weights, at this place among the tensors, stand in.
    let parts_or = |weights_place| match &parts {
        Some(parts) => parts.clone().into_tensor_arg(),
        None => weights.as_tensor_alias(weights_place),
    };
    match numbers {
        Numbers::Levels { keys, values, bits } => {
            let types = [dtype, list.dtype, keys.words.dtype].map(dtype_to_storage_type);
            mma::quantized_planes::launch(
                &client,
                cubes,
                cube,
                queries.into_tensor_arg(),
                keys.words.into_tensor_arg(),
                keys.scale.into_tensor_arg(),
                keys.min.into_tensor_arg(),
                values.words.into_tensor_arg(),
                values.scale.into_tensor_arg(),
                values.min.into_tensor_arg(),
                list.into_tensor_arg(),
                offsets.into_tensor_arg(),
                tail_padding.into_tensor_arg(),
                tail_keys.into_tensor_arg(),
                tail_values.into_tensor_arg(),
                weights.clone().into_tensor_arg(),
                parts_or(12),
                output.clone().into_tensor_arg(),
                columns,
                tail,
                plan.share,
                scale,
                QuantizedMmaBlueprint { planes: PLANES, head_dim, bits, brain, whole, wanted },
                types,
            );
        }
        Numbers::Fp8 { keys, values } => {
            let types = [dtype, list.dtype, keys.words.dtype].map(dtype_to_storage_type);
            let blueprint = Fp8MmaBlueprint { planes: PLANES, head_dim, brain, whole, wanted };
            fp8_mma::fp8_planes::launch(
                &client,
                cubes,
                cube,
                blueprint.width(),
                queries.into_tensor_arg(),
                keys.words.into_tensor_arg(),
                keys.scale.into_tensor_arg(),
                values.words.into_tensor_arg(),
                values.scale.into_tensor_arg(),
                list.into_tensor_arg(),
                offsets.into_tensor_arg(),
                tail_padding.into_tensor_arg(),
                tail_keys.into_tensor_arg(),
                tail_values.into_tensor_arg(),
                weights.clone().into_tensor_arg(),
                parts_or(10),
                output.clone().into_tensor_arg(),
                columns,
                tail,
                plan.share,
                scale,
                blueprint,
                types,
            );
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// WebGPU grants 16 KiB.
    #[test]
    fn tiles_fit_into_shared_memory() {
        for head_dim in 1..=1024 {
            for query_heads in [1, 3, 4, 7, 8, 32] {
                for (bits, group) in
                    [(1, 32), (1, 128), (2, 16), (2, 512), (4, 24), (4, 32), (8, 4), (8, 128)]
                {
                    let heads = Heads { batch: 1, query_heads, kv_heads: 1, head_dim };
                    let blueprint = QuantizedBlueprint::new(heads, bits, group, 1, true);
                    assert!(blueprint.shared_bytes() <= 16384, "{blueprint:?}");
                    assert!(blueprint.lanes.is_power_of_two() && blueprint.lanes <= UNITS);
                    assert!(blueprint.heads * blueprint.blocks >= query_heads);
                }
            }
        }
    }
}
