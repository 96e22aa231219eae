use super::kernel::{LinearGroupsBlueprint, linear_groups};
use crate::common::{backend::*, processors::processors, tile::wgmma::panels};

/// Shared memory of a multiprocessor, without what the driver takes of each cube.
const SHARED: usize = 226 * 1024;

/// Writes the product of `x` and the transpose of `weight`, and the bias, to `output`, all
/// `[rows, columns]`; rows of `output` are contiguous. Where there is a gate, one half of the
/// product times the activation of the other.
pub(in super::super) fn launch(
    x: CubeTensor,
    weight: CubeTensor,
    bias: Option<CubeTensor>,
    output: &CubeTensor,
    blueprint: LinearGroupsBlueprint,
) {
    let client = x.client.clone();
    let element = dtype_to_storage_type(x.dtype);
    let (rows, inputs, columns) = (x.shape()[0], x.shape()[1], output.shape()[1]);
    let tiles = rows.div_ceil(blueprint.rows()) * columns.div_ceil(blueprint.columns());
    let of_processor = (SHARED / (blueprint.stages * blueprint.bytes() + 1024)).clamp(1, 2);
    let cubes = tiles.min(processors(&client) * of_processor);
    let blueprint = blueprint.of_rows(rows);
    let biased = bias.is_some();
    // Never looked at where there is none.
    let bias = bias.unwrap_or_else(|| x.clone());
    linear_groups::launch(
        &client,
        CubeCount::Static(cubes as u32, 1, 1),
        CubeDim::new_1d(blueprint.units() as u32),
        panels(x, blueprint.copied),
        panels(weight, blueprint.columns()),
        bias.into_tensor_arg(),
        output.clone().into_tensor_arg(),
        inputs,
        blueprint,
        biased,
        element,
    );
}
