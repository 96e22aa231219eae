use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::mma::{ClusteredBlueprint, shared_planes};
use crate::{
    attention::decode::split::{
        self, Heads, RowLaunch, SplitPlan,
        mma::{HEADS, TILE},
        operands::{Clusters, Rotary, TailTensors},
    },
    common::tile::support::{is_chunked, multiplies},
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

/// Returns output and weights. `rows` come without their clusters.
pub(super) fn launch(rows: RowLaunch, clusters: Clusters<CubeBackend>) -> (CubeTensor, CubeTensor) {
    let heads = Heads::of(&rows.queries.shape(), &rows.tail.keys.shape());
    let (columns, wanted, dtype) = (rows.columns, rows.wanted, rows.queries.dtype);
    let like = rows.queries.clone();
    let weights = split::weight_shape(heads, columns, wanted);
    let weights = split::empty_weights(&like, weights);
    let output = split::empty(&like, [heads.batch, heads.query_heads, 1, heads.head_dim], dtype);
    let parts = if on_planes(&rows, &clusters, heads) {
        launch_planes(rows, clusters, heads, &output, &weights)
    } else {
        let parts = |splits| (split::parts(&like, heads, splits), 0);
        let rows = RowLaunch { clusters: Some(clusters), ..rows };
        Some(rows.launch(heads, columns, &weights, parts))
    };
    if let Some(parts) = parts {
        split::merge(parts, &output, &weights, heads, wanted);
    }
    (output, weights)
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
    let RowLaunch { queries, starts, rotary, tail, columns, scale, wanted, .. } = rows;
    let TailTensors { keys: tail_keys, values: tail_values, entries: tail } = tail;
    let Clusters { directions, values, tokens_by_cluster, cluster_of_token, norms, offsets } =
        clusters;
    // The kernel finds all three by one place.
    let [tokens_by_cluster, cluster_of_token, norms] =
        [tokens_by_cluster, cluster_of_token, norms].map(into_contiguous);
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // The tail begins with a tile of its own.
    let tiles = (columns - tail).div_ceil(TILE) + tail.div_ceil(TILE);
    let encoded = matches!(rotary, Rotary::Tables { .. });
    let planes = if encoded { ENCODED_PLANES } else { PLANES };
    let plan = SplitPlan::of_tiles(tiles, planes, heads, &client);
    let whole = plan.splits == 1;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    // Another tensor stands in for those that are not looked at.
    let (positions, cosines, sines, table) = match rotary {
        Rotary::Tables { cosines, sines, positions } => {
            let table = cosines.dtype;
            let [positions, cosines, sines] =
                [positions, cosines, sines].map(CubeTensor::into_tensor_arg);
            (positions, cosines, sines, table)
        }
        Rotary::Nothing => {
            let alias = || queries.as_tensor_alias(QUERIES);
            (alias(), alias(), alias(), DType::F32)
        }
    };
    let blueprint = ClusteredBlueprint { planes, head_dim, encoded, whole, wanted };
    let types = [dtype, table, starts.dtype].map(dtype_to_storage_type);
    shared_planes::launch(
        &client,
        CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32),
        CubeDim::new_1d(32 * planes as u32),
        queries.clone().into_tensor_arg(),
        directions.into_tensor_arg(),
        values.into_tensor_arg(),
        tokens_by_cluster.into_tensor_arg(),
        cluster_of_token.into_tensor_arg(),
        norms.into_tensor_arg(),
        starts.into_tensor_arg(),
        offsets.into_tensor_arg(),
        positions,
        cosines,
        sines,
        tail_keys.into_tensor_arg(),
        tail_values.into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        match &parts {
            Some(parts) => parts.clone().into_tensor_arg(),
            None => weights.as_tensor_alias(if encoded { WITH_TABLES } else { WITHOUT_TABLES }),
        },
        output.clone().into_tensor_arg(),
        columns,
        tail,
        plan.share,
        scale,
        blueprint,
        types,
    );
    parts
}
