#[cfg(feature = "fusion")]
use super::operands::PagesMetadata;
use super::{
    fp8::{WORD, fp8_pages},
    fp8_mma::Fp8,
    mma::{GROUP, Levels, PlaneBlueprint, quantized_planes},
    operands::{Numbers, PackedTensors, Pages, VectorTensors, page_inputs},
    portable::{self, PageBlueprint},
};
#[cfg(feature = "fusion")]
use crate::attention::{decode::split::operands::TailTensorsMetadata, scoring::ScoresMetadata};
use crate::{
    attention::{
        decode::split::{
            self, Heads, RowLaunch, SplitPlan, UNITS,
            mma::{HEADS, TILE},
            operands::{Rotary, TailTensors, key_values},
        },
        scoring::Scores,
    },
    common::{
        backend::*,
        tile::{
            mma::CHUNK,
            support::{is_chunked, multiplies},
        },
    },
};

/// Planes of a cube on tensor cores, of which a multiprocessor has registers for two.
const PLANES: usize = 4;

/// Index of the weights among the tensors of the kernel on tensor cores.
const WEIGHTS: usize = 6;

/// Decode attention over quantized pages as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait QuantizedAttentionBackend: Backend {
    /// See [`super::quantized`].
    #[fusion(meta = outputs)]
    fn quantized_attention(
        queries: FloatTensor<Self>,
        #[extension_type] pages: Pages<Self>,
        #[extension_type] tail: TailTensors<Self>,
        #[extension_type] scores: Scores<Self>,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    pages: &PagesMetadata,
    tail: &TailTensorsMetadata,
    _scores: &ScoresMetadata,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    let heads = Heads::of(&queries.shape, &tail.keys.shape);
    let shape = split::weight_shape(heads, pages.columns, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

/// Input of a launch: queries, and the pages and the tail that they attend to.
struct QuantizedProblem {
    queries: CubeTensor,
    pages: Pages<CubeBackend>,
    tail: TailTensors<CubeBackend>,
    scores: Scores<CubeBackend>,
    wanted: bool,
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

impl QuantizedAttentionBackend for CubeBackend {
    fn quantized_attention(
        queries: FloatTensor<Self>,
        pages: Pages<Self>,
        tail: TailTensors<Self>,
        scores: Scores<Self>,
        wanted: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let heads = Heads::of(&queries.shape(), &tail.keys.shape());
        let (output, weights) = split::outputs(&queries, heads, pages.columns, wanted);
        let pages = Pages { numbers: pages.numbers.with_dense_rows(), ..pages };
        let own_scores = scores.clone();
        let problem = QuantizedProblem { queries, pages, tail, scores, wanted };
        let parts = if on_planes(&problem, heads) {
            launch_planes(problem, heads, &output, &weights)
        } else {
            Some(launch_portable(problem, heads, &weights))
        };
        if let Some(parts) = parts {
            split::merge(parts, &output, &weights, heads, own_scores, wanted);
        }
        (output, weights)
    }
}

/// Returns parts of the output.
fn launch_portable(problem: QuantizedProblem, heads: Heads, weights: &CubeTensor) -> CubeTensor {
    let QuantizedProblem { queries, pages, tail, scores, wanted } = problem;
    let Pages { numbers, list, offsets, tail_padding, group, most_pages, columns } = pages;
    let client = queries.client.clone();
    let entries = tail.entries;
    let (blueprint, [words, scales]) = match &numbers {
        Numbers::Levels { keys, values, bits } => {
            let value_groups = values.scale.shape()[1] / group;
            let blueprint = PageBlueprint::levels(heads, *bits, group, value_groups, wanted);
            (blueprint, [keys.words.dtype, keys.scale.dtype])
        }
        Numbers::Fp8 { keys, values } => {
            let row = heads.head_dim.div_ceil(WORD);
            let words = [&keys.words, &values.words];
            let widest = split::vector_width(&words, keys.words.dtype.size(), row);
            let blueprint = PageBlueprint::fp8(heads, group, widest, wanted);
            (blueprint, [keys.words.dtype, keys.scale.dtype])
        }
    };
    let of_split = heads.batch * heads.kv_heads * blueprint.blocks;
    let SplitPlan { splits, share } =
        SplitPlan::of_rows(most_pages, blueprint.pages(), of_split, &client);
    // Those of the tail are behind those of pages.
    let parts = if entries == 0 {
        split::parts(&queries, heads, splits)
    } else {
        let rows = RowLaunch {
            queries: queries.clone(),
            starts: tail_padding.clone(),
            rotary: Rotary::Nothing,
            tail,
            columns,
            scores: scores.clone(),
            wanted,
        };
        rows.launch(None, heads, entries, weights, |of_tail| {
            (split::parts(&queries, heads, splits + of_tail), splits)
        })
    };
    let types = [queries.dtype, scales, list.dtype, words].map(dtype_to_storage_type);
    let cubes = CubeCount::Static((of_split * splits) as u32, 1, 1);
    let cube = CubeDim::new_1d(UNITS as u32);
    let pages = [queries, list, offsets, tail_padding];
    let (own_parts, weights) = (parts.clone().into_tensor_arg(), weights.clone().into_tensor_arg());
    let (scoring, counts) = (scores.arg_without_heads(), heads.counts(splits));
    match numbers {
        Numbers::Levels { keys, values, .. } => portable::pages::launch(
            &client,
            cubes,
            cube,
            page_inputs(pages, columns, entries, share, scoring),
            keys.into_arg(),
            values.into_arg(),
            own_parts,
            weights,
            counts,
            blueprint,
            types,
        ),
        Numbers::Fp8 { keys, values } => fp8_pages::launch(
            &client,
            cubes,
            cube,
            blueprint.value_words,
            page_inputs(pages, columns, entries, share, scoring),
            keys.into_arg(),
            values.into_arg(),
            own_parts,
            weights,
            counts,
            blueprint,
            types,
        ),
    }
    parts
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
                && of_values == GROUP
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
        && *group == GROUP
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
    let QuantizedProblem { queries, pages, tail, scores, wanted } = problem;
    let TailTensors { keys: tail_keys, values: tail_values, entries: tail } = tail;
    let Pages { numbers, list, offsets, tail_padding, most_pages, columns, .. } = pages;
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // A page is a tile, and as much work as two of the tail.
    let tiles = most_pages + tail.div_ceil(TILE);
    let plan = SplitPlan::of_tiles(tiles, PLANES, heads, &client);
    let whole = plan.splits == 1 && !wanted && !scores.numbers().kinds.sinks;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    let cubes = CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32);
    let cube = CubeDim::new_1d(32 * PLANES as u32);
    let (words, bits, run) = match &numbers {
        Numbers::Levels { keys, bits, .. } => (keys.words.dtype, *bits, CHUNK),
        Numbers::Fp8 { keys, .. } => (keys.words.dtype, 8, head_dim / 8),
    };
    let brain = dtype == DType::BF16;
    let blueprint = PlaneBlueprint { planes: PLANES, head_dim, run, bits, brain, whole, wanted };
    let types = [dtype, list.dtype, words].map(dtype_to_storage_type);
    let scoring = scores.arg_without_heads();
    let inputs =
        page_inputs([queries, list, offsets, tail_padding], columns, tail, plan.share, scoring);
    let rows = key_values(tail_keys, tail_values);
    let outputs = split::plane_outputs(output, weights, WEIGHTS, parts.as_ref());
    match numbers {
        Numbers::Levels { keys, values, .. } => {
            let pages = (keys.into_arg(), values.into_arg());
            quantized_planes::launch::<Levels>(
                &client, cubes, cube, 4, inputs, rows, outputs, pages, blueprint, types,
            );
        }
        Numbers::Fp8 { keys, values } => {
            let pages = (keys.into_arg(), values.into_arg());
            let width = blueprint.width();
            quantized_planes::launch::<Fp8>(
                &client, cubes, cube, width, inputs, rows, outputs, pages, blueprint, types,
            );
        }
    }
    parts
}
