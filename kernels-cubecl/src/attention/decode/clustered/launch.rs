use std::array;

use burn_cubecl::kernel::into_contiguous;

use super::mma::{ClusteredBlueprint, shared_planes};
#[cfg(feature = "fusion")]
use crate::attention::{
    decode::split::operands::{ClustersMetadata, RotaryMetadata, TailTensorsMetadata},
    scoring::ScoresMetadata,
};
use crate::{
    attention::{
        decode::split::{
            self, Heads, RowLaunch, SplitPlan,
            mma::{HEADS, TILE},
            operands::{Clusters, Rotary, RotaryArgsLaunch, TailTensors, key_values},
        },
        scoring::Scores,
    },
    common::{
        backend::*,
        tile::support::{is_chunked, multiplies},
    },
};

/// Index of the queries among the tensors of a kernel.
const QUERIES: usize = 0;
/// Index of the weights among the tensors that are no stand-ins, with tables of cosines and sines.
const WITH_TABLES: usize = 13;
/// Index of the weights without tables.
const WITHOUT_TABLES: usize = 10;

/// Planes of a cube, of which a multiprocessor has registers for two: 204 per unit. Six are as fast
/// as long as 170 are enough, and take half as long again where they are not.
const PLANES: usize = 5;
/// Planes of a cube where keys are rotated in registers.
const ENCODED_PLANES: usize = 4;

/// Decode attention over clusters as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait ClusteredAttentionBackend: Backend {
    /// See [`super::clustered`].
    #[fusion(meta = outputs)]
    fn clustered_attention(
        queries: FloatTensor<Self>,
        #[extension_type] clusters: Clusters<Self>,
        padding: IntTensor<Self>,
        #[extension_type] rotary: Rotary<Self>,
        #[extension_type] tail: TailTensors<Self>,
        #[extension_type] scores: Scores<Self>,
        weights: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// Shapes of the output and the weights, for a fusion that has not run the operation yet.
#[cfg(feature = "fusion")]
fn outputs(
    queries: &TensorSpec,
    clusters: &ClustersMetadata,
    _padding: &TensorSpec,
    _rotary: &RotaryMetadata,
    tail: &TailTensorsMetadata,
    _scores: &ScoresMetadata,
    weights: &bool,
) -> (TensorSpec, TensorSpec) {
    let heads = Heads::of(&queries.shape, &tail.keys.shape);
    let columns = clusters.tokens_by_cluster.shape[2] + tail.entries;
    let shape = split::weight_shape(heads, columns, *weights);
    (queries.clone(), TensorSpec::new(Shape::from(shape), DType::F32))
}

impl ClusteredAttentionBackend for CubeBackend {
    fn clustered_attention(
        queries: FloatTensor<Self>,
        clusters: Clusters<Self>,
        padding: IntTensor<Self>,
        rotary: Rotary<Self>,
        tail: TailTensors<Self>,
        scores: Scores<Self>,
        wanted: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let heads = Heads::of(&queries.shape(), &tail.keys.shape());
        let columns = clusters.tokens_by_cluster.shape()[2] + tail.entries;
        let like = queries.clone();
        let own_scores = scores.clone();
        let rows = RowLaunch { queries, starts: padding, rotary, tail, columns, scores, wanted };
        let (output, weights) = split::outputs(&like, heads, columns, wanted);
        let parts = if on_planes(&rows, &clusters, heads) {
            launch_planes(rows, clusters, heads, &output, &weights)
        } else {
            let parts = |splits| (split::parts(&like, heads, splits), 0);
            Some(rows.launch(Some(clusters), heads, columns, &weights, parts))
        };
        if let Some(parts) = parts {
            split::merge(parts, &output, &weights, heads, own_scores, wanted);
        }
        (output, weights)
    }
}

/// Whether tensor cores take these rows.
fn on_planes(rows: &RowLaunch, clusters: &Clusters<CubeBackend>, heads: Heads) -> bool {
    let RowLaunch { queries, tail, .. } = rows;
    let tables = match &rows.rotary {
        Rotary::Nothing => [None, None],
        Rotary::Tables { cosines, sines, .. } => [Some(cosines), Some(sines)],
    };
    let tensors = [&clusters.directions, &clusters.values, &tail.keys, &tail.values];
    heads.head_dim.is_multiple_of(64)
        && multiplies(&queries.client, tail.keys.dtype, heads.head_dim)
        && queries.dtype == tail.keys.dtype
        && tensors.into_iter().chain(tables.into_iter().flatten()).all(is_chunked)
}

/// Writes the output, or returns parts of it.
fn launch_planes(
    rows: RowLaunch,
    clusters: Clusters<CubeBackend>,
    heads: Heads,
    output: &CubeTensor,
    weights: &CubeTensor,
) -> Option<CubeTensor> {
    let RowLaunch { queries, starts, rotary, tail, columns, scores, wanted } = rows;
    let TailTensors { keys: tail_keys, values: tail_values, entries: tail } = tail;
    // The kernel finds all three by one place.
    let clusters = Clusters {
        tokens_by_cluster: into_contiguous(clusters.tokens_by_cluster),
        cluster_of_token: into_contiguous(clusters.cluster_of_token),
        norms: into_contiguous(clusters.norms),
        ..clusters
    };
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // The tail begins with a tile of its own.
    let tiles = (columns - tail).div_ceil(TILE) + tail.div_ceil(TILE);
    let encoded = matches!(rotary, Rotary::Tables { .. });
    let planes = if encoded { ENCODED_PLANES } else { PLANES };
    let plan = SplitPlan::of_tiles(tiles, planes, heads, &client);
    // Sinks come in where parts are merged.
    let whole = plan.splits == 1 && !scores.numbers().kinds.sinks;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    // Another tensor stands in for those that are not looked at.
    let ([cosines, sines, positions], table) = match rotary {
        Rotary::Tables { cosines, sines, positions } => {
            let table = cosines.dtype;
            ([cosines, sines, positions].map(CubeTensor::into_tensor_arg), table)
        }
        Rotary::Nothing => (array::from_fn(|_| queries.as_tensor_alias(QUERIES)), DType::F32),
    };
    let blueprint = ClusteredBlueprint { planes, head_dim, encoded, whole, wanted };
    let types = [dtype, table, starts.dtype].map(dtype_to_storage_type);
    shared_planes::launch(
        &client,
        CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32),
        CubeDim::new_1d(32 * planes as u32),
        queries.into_tensor_arg(),
        clusters.into_arg(),
        starts.into_tensor_arg(),
        RotaryArgsLaunch::new(cosines, sines, positions),
        key_values(tail_keys, tail_values),
        split::plane_outputs(
            output,
            weights,
            if encoded { WITH_TABLES } else { WITHOUT_TABLES },
            parts.as_ref(),
        ),
        columns,
        tail,
        plan.share,
        scores.arg_without_heads(),
        blueprint,
        types,
    );
    parts
}
