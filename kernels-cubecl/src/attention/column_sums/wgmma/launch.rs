use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{kernel::into_contiguous, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::kernel::{ColumnGroupsBlueprint, column_scores_groups};
use crate::common::tile::wgmma::panels;

/// Writes the sums, causally, and those that are wanted of the last `local` queries and of squares.
pub(in super::super) fn launch(
    [queries, keys, log_sum_exp]: [CubeTensor; 3],
    [sums, local_sums, squared]: [&CubeTensor; 3],
    scale: f32,
    local: usize,
    squares: bool,
) {
    let client = queries.client.clone();
    let shape = queries.shape();
    let (batch, heads, head_dim) = (shape[0], shape[1], shape[3]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let element = dtype_to_storage_type(queries.dtype);
    let blueprint =
        ColumnGroupsBlueprint { head_dim, groups: 4, queries: 128, local: local > 0, squares };
    let blocks = entries.div_ceil(blueprint.keys());
    column_scores_groups::launch(
        &client,
        CubeCount::Static(heads as u32, blocks as u32, batch as u32),
        CubeDim::new_1d(blueprint.units() as u32),
        panels(queries, blueprint.queries),
        panels(keys, blueprint.keys()),
        into_contiguous(log_sum_exp).into_tensor_arg(),
        sums.clone().into_tensor_arg(),
        local_sums.clone().into_tensor_arg(),
        squared.clone().into_tensor_arg(),
        heads / kv_heads,
        local,
        scale,
        blueprint,
        element,
    );
}
