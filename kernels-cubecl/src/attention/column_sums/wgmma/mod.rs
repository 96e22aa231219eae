//! Sums over columns on Hopper's tensor cores, causally.

mod kernel;

use burn_cubecl::kernel::into_contiguous;

use self::kernel::{KEYS, QUERIES, UNITS, column_scores_groups};
use super::portable::ColumnSumsBlueprint;
use crate::common::{backend::*, tile::wgmma::panels};

/// Writes the sums, causally, and those that are wanted of the last `local` queries and of squares.
pub(super) fn launch(
    [queries, keys, log_sum_exp]: [CubeTensor; 3],
    sums: [CubeTensor; 3],
    scale: f32,
    local: usize,
    blueprint: ColumnSumsBlueprint,
) {
    let client = queries.client.clone();
    let shape = queries.shape();
    let (batch, heads) = (shape[0], shape[1]);
    let (kv_heads, entries) = (keys.shape()[1], keys.shape()[2]);
    let element = dtype_to_storage_type(queries.dtype);
    let [sums, local_sums, squared] = sums.map(CubeTensor::into_tensor_arg);
    column_scores_groups::launch(
        &client,
        CubeCount::Static(heads as u32, entries.div_ceil(KEYS) as u32, batch as u32),
        CubeDim::new_1d(UNITS as u32),
        panels(queries, QUERIES),
        panels(keys, KEYS),
        into_contiguous(log_sum_exp).into_tensor_arg(),
        sums,
        local_sums,
        squared,
        heads / kv_heads,
        local,
        scale,
        blueprint,
        element,
    );
}
