use burn::backend::ops::FloatTensorOps;

#[cfg(cubecl_0_12)]
use super::wgmma;
use super::{
    k_major::linear_k_major,
    merge::{self, linear_merge},
    plan::{self, LinearPlan, MOST_LINEAR_ROWS},
    planes::linear_planes,
    step::STEP,
    tiles::linear_tiles,
    units::{LinearUnitsBlueprint, linear_units},
};
#[cfg(cubecl_0_12)]
use crate::common::tile::wgmma::multiplies_groups;
use crate::common::{
    backend::*,
    optional::Optional,
    tile::support::{chunked, is_chunked, multiplies},
    vector::vector_size,
};

/// The product as an operation of a backend.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub(super) trait LinearBackend: Backend {
    /// See [`super::linear`].
    #[fusion(dtype = x, shape = Shape::from([x[0], weight[1]]))]
    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
    ) -> FloatTensor<Self>;
}

/// The matrix `[outputs, inputs]` whose transpose the weights are in memory, with rows that can be
/// read in chunks of 16 bytes; `None` if they are no such transpose.
pub(super) fn k_major(weight: &CubeTensor) -> Option<CubeTensor> {
    let turned = CubeBackend::float_transpose(weight.clone());
    (!is_chunked(weight) && is_chunked(&turned)).then_some(turned)
}

impl LinearBackend for CubeBackend {
    fn linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Optional<Self>,
    ) -> FloatTensor<Self> {
        let client = x.client.clone();
        let (rows, inputs) = (x.shape()[0], x.shape()[1]);
        let outputs = weight.shape()[1];
        let (dtype, element) = (x.dtype, dtype_to_storage_type(x.dtype));
        let output = empty(&x, [rows, outputs], dtype);
        let parts =
            |plan: &LinearPlan| empty(&output, [plan.parts() * rows * plan.tile], DType::F32);

        let on_planes = plan::divides(inputs, outputs) && multiplies(&client, dtype, STEP);
        let turned = if on_planes { k_major(&weight) } else { None };
        let k_major = turned.is_some();
        let weight = if let Some(turned) = turned {
            turned
        } else if on_planes && rows > MOST_LINEAR_ROWS {
            // Units would take longer than a copy.
            chunked(weight)
        } else {
            weight
        };
        let on_planes = on_planes && is_chunked(&weight);
        let bias = bias.into_option();
        let in_tiles = on_planes && rows >= plan::FEWEST_ROWS_OF_TILES;
        #[cfg(cubecl_0_12)]
        if k_major && rows >= wgmma::FEWEST_ROWS && multiplies_groups(&client, element) {
            let blueprint = wgmma::choose([rows, inputs, outputs]);
            wgmma::launch(x, weight, bias, &output, blueprint);
            return output;
        }
        let biased = bias.is_some();
        // Never looked at where there is none.
        let bias = bias.unwrap_or_else(|| x.clone());
        let mut tile_rows = rows;
        let (plan, parts) = if in_tiles {
            let (tiles, of_processor) = plan::tiles(rows, inputs, k_major);
            let plan = LinearPlan::in_tiles(&client, [rows, inputs, outputs], &tiles, of_processor);
            tile_rows = tiles.rows();
            let size = plan.parts() * tiles.rows() * tiles.outputs();
            // Of whole tiles there are no parts.
            let parts = empty(&output, [if plan.is_whole() { 2 } else { size }], DType::F32);
            linear_tiles::launch(
                &client,
                CubeCount::Static(plan.cubes as u32, 1, 1),
                CubeDim::new_1d(tiles.units() as u32),
                chunked(x).into_tensor_arg(),
                weight.into_tensor_arg(),
                bias.clone().into_tensor_arg(),
                output.clone().into_tensor_arg(),
                parts.clone().into_tensor_arg(),
                plan.share,
                tiles,
                biased,
                element,
            );
            if plan.is_whole() {
                return output;
            }
            (plan, parts)
        } else if k_major {
            let planes = plan::k_major(&client, rows, outputs);
            linear_k_major::launch(
                &client,
                CubeCount::Static(outputs.div_ceil(planes.tile()) as u32, 1, 1),
                CubeDim::new_1d(planes.count() as u32 * 32),
                chunked(x).into_tensor_arg(),
                weight.into_tensor_arg(),
                bias.into_tensor_arg(),
                output.clone().into_tensor_arg(),
                planes,
                biased,
                element,
            );
            return output;
        } else if on_planes {
            let (planes, of_processor) = plan::planes(rows);
            let plan = LinearPlan::new(&client, inputs, outputs, planes.tile(), of_processor);
            let parts = parts(&plan);
            linear_planes::launch(
                &client,
                CubeCount::Static(plan.cubes as u32, 1, 1),
                CubeDim::new_1d(planes.count() as u32 * 32),
                chunked(x).into_tensor_arg(),
                weight.into_tensor_arg(),
                parts.clone().into_tensor_arg(),
                plan.share,
                planes,
                element,
            );
            (plan, parts)
        } else {
            let (of_x, vector) = (vector_size(&x), vector_size(&weight));
            let hardware = client.properties().hardware.clone();
            let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
            let blueprint = LinearUnitsBlueprint::new(
                [rows, inputs, outputs],
                [of_x, vector],
                dtype.size(),
                most,
                biased,
            );
            linear_units::launch(
                &client,
                CubeCount::Static(
                    outputs.div_ceil(blueprint.tile) as u32,
                    rows.div_ceil(blueprint.rows) as u32,
                    1,
                ),
                CubeDim::new_1d(blueprint.units() as u32),
                of_x,
                vector,
                x.into_tensor_arg(),
                weight.into_tensor_arg(),
                bias.into_tensor_arg(),
                output.clone().into_tensor_arg(),
                blueprint,
                element,
            );
            return output;
        };

        let vector = vector_size(&output);
        linear_merge::launch(
            &client,
            CubeCount::Static(outputs.div_ceil(merge::UNITS * vector) as u32, rows as u32, 1),
            CubeDim::new_1d(merge::UNITS as u32),
            vector,
            parts.clone().into_tensor_arg(),
            bias.into_tensor_arg(),
            output.clone().into_tensor_arg(),
            plan.steps,
            plan.share,
            plan.tile,
            tile_rows,
            in_tiles,
            biased,
            element,
        );
        output
    }
}
