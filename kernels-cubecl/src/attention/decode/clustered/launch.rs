use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::DType,
};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::mma::{self, shared_planes};
use crate::{
    attention::decode::split::{
        self, Heads, Members, PlanePlan, Rows, Turn,
        mma::{HEADS, TILE},
    },
    common::tile::support::{is_chunked, multiplies},
};

/// Where the queries are among the tensors of a kernel.
const QUERIES: usize = 0;
/// Where the weights are among those that are not stood in for, with what keys are turned by and without.
const WITH_TURN: usize = 13;
const WITHOUT_TURN: usize = 10;

/// Planes of a cube, of which a multiprocessor has registers for two: 204 a unit. Six are as fast as long as 170 are
/// enough, and take half as long again where they are not.
const PLANES: usize = 5;
/// The same where keys are turned in registers.
const ENCODED_PLANES: usize = 4;

/// Returns output and weights.
pub(super) fn launch(rows: Rows) -> (CubeTensor, CubeTensor) {
    let heads = Heads::of(&rows.queries.shape(), &rows.tail_keys.shape());
    let (columns, wanted, dtype) = (rows.columns, rows.wanted, rows.queries.dtype);
    let like = rows.queries.clone();
    let weights = split::weight_shape(heads, columns, wanted);
    let weights = split::empty(&like, weights, DType::F32);
    let output = split::empty(&like, [heads.batch, heads.query_heads, 1, heads.head_dim], dtype);
    let members = rows.members.clone();
    let parts = match members.filter(|members| on_planes(&rows, members, heads)) {
        Some(members) => launch_planes(rows, members, heads, &output, &weights),
        None => {
            let parts = |splits| (split::parts(&like, heads, splits), 0);
            Some(rows.launch(heads, columns, &weights, parts))
        }
    };
    if let Some(parts) = parts {
        split::merge(parts, &output, &weights, heads, wanted);
    }
    (output, weights)
}

/// Whether tensor cores take these rows.
fn on_planes(rows: &Rows, members: &Members, heads: Heads) -> bool {
    let tables = rows.turn.iter().flat_map(|turn| [&turn.cosines, &turn.sines]);
    let held = [&members.directions, &members.values, &rows.tail_keys, &rows.tail_values];
    heads.head_dim.is_multiple_of(64)
        && multiplies(&rows.queries.client, rows.tail_keys.dtype, heads.head_dim)
        && rows.queries.dtype == rows.tail_keys.dtype
        && held.into_iter().chain(tables).all(is_chunked)
}

/// Writes the output, or returns parts of it.
fn launch_planes(
    rows: Rows,
    members: Members,
    heads: Heads,
    output: &CubeTensor,
    weights: &CubeTensor,
) -> Option<CubeTensor> {
    let Rows { queries, starts, turn, tail_keys, tail_values, .. } = rows;
    let Rows { tail, columns, scale, wanted, .. } = rows;
    let Members { directions, values, members, entry, norms, offsets } = members;
    // The kernel finds all three by one place.
    let [members, entry, norms] = [members, entry, norms].map(into_contiguous);
    let Heads { batch, kv_heads, head_dim, .. } = heads;
    let client = queries.client.clone();
    let dtype = queries.dtype;
    // The tail begins with a tile of its own.
    let tiles = (columns - tail).div_ceil(TILE) + tail.div_ceil(TILE);
    let encoded = turn.is_some();
    let planes = if encoded { ENCODED_PLANES } else { PLANES };
    let plan = PlanePlan::new(tiles, planes, heads, &client);
    let whole = plan.splits == 1 && !wanted;
    let parts = (!whole).then(|| split::parts(&queries, heads, plan.splits));
    let blocks = heads.group().div_ceil(HEADS);
    // What is not looked at: another tensor stands in.
    let (positions, cosines, sines, table) = match turn {
        Some(Turn { cosines, sines, positions }) => {
            let table = cosines.dtype;
            let [positions, cosines, sines] =
                [positions, cosines, sines].map(CubeTensor::into_tensor_arg);
            (positions, cosines, sines, table)
        }
        None => {
            let alias = || queries.as_tensor_alias(QUERIES);
            (alias(), alias(), alias(), DType::F32)
        }
    };
    let cut = mma::Cut { planes, head_dim, encoded, whole, wanted };
    let types = [dtype, table, starts.dtype].map(dtype_to_storage_type);
    shared_planes::launch(
        &client,
        CubeCount::Static(plan.splits as u32, (kv_heads * blocks) as u32, batch as u32),
        CubeDim::new_1d(32 * planes as u32),
        queries.clone().into_tensor_arg(),
        directions.into_tensor_arg(),
        values.into_tensor_arg(),
        members.into_tensor_arg(),
        entry.into_tensor_arg(),
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
            None => weights.as_tensor_alias(if encoded { WITH_TURN } else { WITHOUT_TURN }),
        },
        output.clone().into_tensor_arg(),
        columns,
        tail,
        plan.share,
        scale,
        cut,
        types,
    );
    parts
}
