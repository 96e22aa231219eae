use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel::{AttentionGroupsBlueprint, attention_groups};
use crate::common::tile::wgmma::panels;

/// Writes attention, causally, to `output` and `log_sum_exp`.
pub(in super::super) fn launch(
    [queries, keys, values]: [CubeTensor; 3],
    output: &CubeTensor,
    log_sum_exp: &CubeTensor,
    scale: f32,
) {
    let client = queries.client.clone();
    let shape = queries.shape();
    let (batch, heads, new, head_dim) = (shape[0], shape[1], shape[2], shape[3]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let element = dtype_to_storage_type(queries.dtype);
    let blueprint = AttentionGroupsBlueprint { head_dim, groups: 2, keys: 128 };
    let blocks = new.div_ceil(blueprint.queries());
    attention_groups::launch(
        &client,
        CubeCount::Static(heads as u32, blocks as u32, batch as u32),
        CubeDim::new_1d(blueprint.units() as u32),
        panels(queries, blueprint.queries()),
        panels(keys, blueprint.keys),
        panels(values, blueprint.keys),
        output.clone().into_tensor_arg(),
        log_sum_exp.clone().into_tensor_arg(),
        entries,
        heads / kv_heads,
        scale,
        blueprint,
        element,
    );
}
