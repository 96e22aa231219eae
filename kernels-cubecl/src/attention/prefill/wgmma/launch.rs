use briquette_ops::SparseTiles;
use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{ComptimeOptionArgs, CubeCount, CubeDim};

use super::{
    super::pattern::Pattern,
    kernel::{AttentionGroupsBlueprint, attention_groups},
};
use crate::common::tile::wgmma::{ROWS, panels};

/// Groups of a cube.
const GROUPS: usize = 2;
/// Keys of a block.
const KEYS: usize = 128;
// As lists of tiles are made.
const _: () = assert!(GROUPS * ROWS == SparseTiles::QUERIES);
const _: () = assert!(KEYS.is_multiple_of(SparseTiles::KEYS));

/// Writes attention to `output` and `log_sum_exp`, by the positions of queries and entries if they
/// are there, and within a pattern.
pub(in super::super) fn launch(
    [queries, keys, values]: [CubeTensor; 3],
    [of_queries, of_entries]: [CubeTensor; 2],
    pattern: ComptimeOptionArgs<Pattern>,
    [by_position, sparse]: [bool; 2],
    output: &CubeTensor,
    log_sum_exp: &CubeTensor,
    scale: f32,
) {
    let client = queries.client.clone();
    let shape = queries.shape();
    let (batch, heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let types = [&queries, &of_queries].map(|tensor| dtype_to_storage_type(tensor.dtype));
    let blueprint =
        AttentionGroupsBlueprint { head_dim, groups: GROUPS, keys: KEYS, by_position, sparse };
    let blocks = new.div_ceil(blueprint.queries());
    attention_groups::launch(
        &client,
        CubeCount::Static(heads as u32, blocks as u32, batch as u32),
        CubeDim::new_1d(blueprint.units() as u32),
        panels(queries, blueprint.queries()),
        panels(keys, blueprint.tile()),
        panels(values, blueprint.tile()),
        of_queries.into_tensor_arg(),
        of_entries.into_tensor_arg(),
        pattern,
        output.clone().into_tensor_arg(),
        log_sum_exp.clone().into_tensor_arg(),
        entries,
        heads / kv_heads,
        scale,
        blueprint,
        types,
    );
}
