#[cfg(feature = "fusion")]
use super::operands::{DecodeTensorsMetadata, EntryCountsMetadata, KvMaskMetadata};
use super::{
    entries::{EntryKinds, entries_of},
    mma::{self, DecodeLayoutLaunch, DecodeMmaBlueprint, decode_planes},
    operands::{DecodeTensors, EntryCounts, KvMask},
    portable::{self, DecodeBlueprint, decode_part},
};
#[cfg(feature = "fusion")]
use crate::attention::{decode::split::operands::TailTensorsMetadata, scoring::ScoresMetadata};
use crate::{
    attention::{
        decode::{
            merge::{self, decode_merge, part_width},
            split::{self, operands::TailTensors},
        },
        scoring::Scores,
    },
    common::{
        backend::*,
        processors::processors,
        strides::row_strides,
        tile::mma::CHUNK,
        tile::support::{chunked, is_chunked, multiplies},
    },
};

/// Shape of the weights of so many columns.
fn weight_shape(queries: &Shape, columns: usize) -> Shape {
    Shape::from([queries[0], queries[1], queries[2], columns])
}

/// Cubes per multiprocessor that hide each other's loads.
const CUBES_A_PROCESSOR: usize = 2;
/// Most bytes of a load.
const LOAD: usize = 16;
/// Index of the queries among the tensors of a kernel.
const QUERIES: usize = 0;

/// Query rows of a cube, of those of a kv head, if it can have at most so many.
fn rows(queries: usize, most: usize) -> usize {
    queries.div_ceil(queries.div_ceil(most))
}

/// Decode attention over dense or ragged entries as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait DecodeAttentionBackend: Backend {
    /// See [`super::dense`].
    #[fusion(meta = outputs)]
    fn decode_attention(
        queries: FloatTensor<Self>,
        #[extension_type] rows: TailTensors<Self>,
        #[extension_type] mask: KvMask<Self>,
        #[extension_type] counts: EntryCounts<Self>,
        #[extension_type] scores: Scores<Self>,
        weights: bool,
    ) -> DecodeTensors<Self>;
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    rows: &TailTensorsMetadata,
    mask: &KvMaskMetadata,
    _counts: &EntryCountsMetadata,
    _scores: &ScoresMetadata,
    weights: &bool,
) -> DecodeTensorsMetadata {
    let output = queries.clone();
    if !weights {
        return DecodeTensorsMetadata::Plain { output };
    }
    let of_list = match mask {
        KvMaskMetadata::List { width, .. } => *width,
        KvMaskMetadata::Slots { positions, .. } => positions.shape[2],
        KvMaskMetadata::Causal | KvMaskMetadata::Positions { .. } => 0,
    };
    let shape = weight_shape(&queries.shape, of_list + rows.entries);
    DecodeTensorsMetadata::Weights { output, weights: TensorSpec::new(shape, DType::F32) }
}

impl DecodeAttentionBackend for CubeBackend {
    fn decode_attention(
        queries: FloatTensor<Self>,
        TailTensors { keys, values, entries }: TailTensors<Self>,
        mask: KvMask<Self>,
        counts: EntryCounts<Self>,
        scores: Scores<Self>,
        wanted: bool,
    ) -> DecodeTensors<Self> {
        let client = queries.client.clone();
        let shape = queries.shape();
        let (batch, query_heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
        let kv_heads = keys.shape()[1];

        let counts = match counts {
            EntryCounts::Alike => None,
            EntryCounts::Counted { of_heads } => Some(of_heads),
        };
        let (mut of_queries, mut of_entries) = (None, None);
        let (list, width) = match mask {
            KvMask::Causal => (None, 0),
            KvMask::Positions { queries, entries } => {
                (of_queries, of_entries) = (Some(queries), Some(entries));
                (None, 0)
            }
            KvMask::List { keys, values, offsets, width } => (Some([keys, values, offsets]), width),
            KvMask::Slots { keys, values, offsets, positions } => {
                let width = positions.shape()[2];
                of_entries = Some(positions);
                (Some([keys, values, offsets]), width)
            }
        };
        let weights = wanted
            .then(|| split::empty(&queries, weight_shape(&shape, width + entries), DType::F32));

        let of_head = query_heads / kv_heads * new;
        let on_planes = queries.dtype == keys.dtype
            && head_dim.is_multiple_of(64)
            && multiplies(&client, keys.dtype, head_dim)
            && [&keys, &values].into_iter().all(is_chunked)
            && list.iter().all(|[keys, values, _]| is_chunked(keys) && is_chunked(values));
        let queries = if on_planes { chunked(queries) } else { queries };
        let (most, step) = if on_planes {
            (mma::ROWS, mma::TILE * mma::PLANES)
        } else {
            (portable::ROWS, portable::CHUNK)
        };
        let rows = rows(of_head, most);
        let blocks = of_head.div_ceil(rows);
        // A list and what follows it are cut by themselves.
        let steps = width.div_ceil(step) + entries.div_ceil(step);
        let share = share(&client, steps, batch * kv_heads * blocks);
        let count = steps.div_ceil(share);
        let lines = batch * query_heads * new;
        let output = split::empty(&queries, shape, queries.dtype);
        // What pads the weights of a list is written where splits are merged.
        let whole = on_planes && count == 1 && !(wanted && list.is_some());
        let of_parts = if whole { [1, 1, 1] } else { [lines, count, part_width(head_dim)] };
        let parts = split::empty(&queries, of_parts, DType::F32);

        let listed = list.is_some();
        let kinds = EntryKinds {
            listed,
            counted: counts.is_some(),
            by_position: of_entries.is_some(),
            weights: wanted,
        };
        let int = match (&list, of_entries.as_ref().or(counts.as_ref())) {
            (Some([_, _, offsets]), _) => offsets.dtype,
            (_, Some(integers)) => integers.dtype,
            _ => DType::I32,
        };
        let [query, key, int] = [queries.dtype, keys.dtype, int].map(dtype_to_storage_type);
        // What a call lacks is never looked at: another tensor stands in. Those that stand in are
        // not counted where the parts are looked for, behind queries, keys and values.
        let marks = [&of_queries, &of_entries, &counts].into_iter().flatten().count();
        let parts_place = 3 + 3 * usize::from(listed) + marks;
        let or_queries = |tensor: Option<&CubeTensor>| match tensor {
            Some(tensor) => tensor.clone().into_tensor_arg(),
            None => queries.as_tensor_alias(QUERIES),
        };
        let or_parts = |tensor: &Option<CubeTensor>, place| match tensor {
            Some(tensor) => tensor.clone().into_tensor_arg(),
            None => parts.as_tensor_alias(place),
        };
        let of_list = |part: usize| list.as_ref().map(|list| &list[part]);
        let entry_tensors = [
            or_queries(of_list(0)),
            or_queries(of_list(1)),
            or_queries(of_list(2)),
            keys.clone().into_tensor_arg(),
            values.clone().into_tensor_arg(),
            or_queries(of_queries.as_ref()),
            or_queries(of_entries.as_ref()),
            or_queries(counts.as_ref()),
        ];
        let cubes = CubeCount::Static(count as u32, (kv_heads * blocks) as u32, batch as u32);
        let (scoring, score_kinds) = scores.clone().into_arg();
        if on_planes {
            let row = |tensor: Option<&CubeTensor>| {
                tensor.map_or(0, |tensor| tensor.meta.strides()[0] / CHUNK)
            };
            let layout = DecodeLayoutLaunch::new(
                query_heads / kv_heads,
                kv_heads,
                new,
                entries,
                share * mma::PLANES,
                row_strides(&queries, CHUNK),
                row_strides(&keys, CHUNK),
                row_strides(&values, CHUNK),
                row(of_list(0)),
                row(of_list(1)),
            );
            decode_planes::launch(
                &client,
                cubes,
                CubeDim::new_1d(mma::PLANES as u32 * 32),
                queries.clone().into_buffer_arg(),
                entries_of(entry_tensors),
                parts.clone().into_buffer_arg(),
                output.clone().into_buffer_arg(),
                or_parts(&weights, parts_place),
                layout,
                scoring,
                DecodeMmaBlueprint { head_dim, tall: rows > 8, kinds, scoring: score_kinds, whole },
                [key, int],
            );
        } else {
            let tensors = [Some(&keys), Some(&values), of_list(0), of_list(1)];
            let load = load(head_dim, tensors.into_iter().flatten());
            decode_part::launch(
                &client,
                cubes,
                CubeDim::new_1d(portable::UNITS as u32),
                load,
                queries.clone().into_tensor_arg(),
                entries_of(entry_tensors),
                parts.clone().into_tensor_arg(),
                or_parts(&weights, parts_place),
                entries,
                share,
                scoring,
                DecodeBlueprint { head_dim, width: load, rows, kinds, scoring: score_kinds },
                [query, key, int],
            );
        }
        if !whole {
            let columns = if wanted { width + entries } else { 1 };
            decode_merge::launch(
                &client,
                CubeCount::Static(lines as u32, columns.div_ceil(merge::WEIGHTS) as u32, 1),
                CubeDim::new_1d(merge::UNITS as u32),
                parts.clone().into_buffer_arg(),
                match of_list(2) {
                    Some(offsets) => offsets.clone().into_tensor_arg(),
                    None => parts.as_tensor_alias(0),
                },
                output.clone().into_buffer_arg(),
                or_parts(&weights, 0),
                count,
                query_heads,
                kv_heads,
                new,
                entries,
                scores.into_arg().0,
                head_dim,
                score_kinds.sinks,
                listed,
                wanted,
                [query, int],
            );
        }
        match weights {
            Some(weights) => DecodeTensors::Weights { output, weights },
            None => DecodeTensors::Plain { output },
        }
    }
}

/// Steps per cube, so that all cubes together keep the device busy and run at once, if there are
/// not more heads.
fn share(client: &Client, steps: usize, heads: usize) -> usize {
    let wanted = processors(client) * CUBES_A_PROCESSOR / heads;
    steps.div_ceil(wanted.clamp(1, merge::MOST_PARTS))
}

/// Most numbers that can be loaded at once from all of the tensors.
fn load<'a>(head_dim: usize, tensors: impl Iterator<Item = &'a CubeTensor> + Clone) -> usize {
    let fits = |width: usize| {
        head_dim.is_multiple_of(width)
            && tensors.clone().all(|tensor| {
                let strides = tensor.meta.strides();
                let shape = tensor.shape();
                let last = strides.len() - 1;
                width * tensor.dtype.size() <= LOAD
                    && strides[last] == 1
                    && (0..last).all(|dim| strides[dim].is_multiple_of(width) || shape[dim] == 1)
            })
    };
    [8, 4, 2].into_iter().find(|&width| fits(width)).unwrap_or(1)
}
