//! The attention of a prompt on Hopper's tensor cores.

mod kernel;

use cubecl::prelude::ComptimeOptionArgs;

use self::kernel::{QUERIES, UNITS, attention_groups, keys_of_tile};
use super::{pattern::Pattern, portable::PrefillBlueprint};
use crate::common::{backend::*, tile::wgmma::panels};

/// Writes output and log-sum-exp, by the positions of queries and entries if they are there, and
/// within a pattern.
pub(super) fn launch(
    [queries, keys, values]: [CubeTensor; 3],
    [of_queries, of_entries]: [CubeTensor; 2],
    pattern: ComptimeOptionArgs<Pattern>,
    [output, log_sum_exp]: [&CubeTensor; 2],
    scale: f32,
    blueprint: PrefillBlueprint,
) {
    let client = queries.client.clone();
    let shape = queries.shape();
    let (batch, heads, blocks) = (shape[0], shape[1], shape[2].div_ceil(QUERIES));
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let types = [&queries, &of_queries].map(|tensor| dtype_to_storage_type(tensor.dtype));
    attention_groups::launch(
        &client,
        CubeCount::Static(heads as u32, blocks as u32, batch as u32),
        CubeDim::new_1d(UNITS as u32),
        panels(queries, QUERIES),
        panels(keys, keys_of_tile(blueprint)),
        panels(values, keys_of_tile(blueprint)),
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
