use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{
    blueprint::{self, Blueprint, MOST_LINEAR_ROWS},
    merge::{self, linear_merge},
    operands::Added,
    planes::linear_planes,
    step::STEP,
    tiles::linear_tiles,
    units::{self, linear_units},
};
use crate::common::{
    tile::support::{chunked, is_chunked, multiplies},
    vector::vector_size,
};

pub(super) fn launch(x: CubeTensor, weight: CubeTensor, added: Added<CubeBackend>) -> CubeTensor {
    let client = x.client.clone();
    let empty = |shape, dtype| empty_device_dtype(client.clone(), x.device.clone(), shape, dtype);
    let (rows, inputs) = (x.shape()[0], x.shape()[1]);
    let outputs = weight.shape()[1];
    let (dtype, element) = (x.dtype, dtype_to_storage_type(x.dtype));
    let output = empty(Shape::from([rows, outputs]), dtype);
    let parts = |blueprint: &Blueprint| {
        empty(Shape::from([blueprint.parts() * rows * blueprint.tile]), DType::F32)
    };

    let on_planes = blueprint::divides(inputs, outputs) && multiplies(&client, dtype, STEP);
    // Units would take longer than a copy.
    let weight = if on_planes && rows > MOST_LINEAR_ROWS { chunked(weight) } else { weight };
    let on_planes = on_planes && is_chunked(&weight);
    let biased = matches!(added, Added::Bias { .. });
    let bias = match added {
        Added::Bias { bias } => bias,
        // Never looked at.
        Added::Nothing => x.clone(),
    };
    let in_tiles = on_planes && rows >= blueprint::FEWEST_ROWS_OF_TILES;
    let mut tile_rows = rows;
    let (blueprint, parts) = if in_tiles {
        let (tiles, of_processor) = blueprint::tiles(rows, inputs);
        let blueprint = Blueprint::in_tiles(&client, [rows, inputs, outputs], &tiles, of_processor);
        tile_rows = tiles.rows();
        let size = blueprint.parts() * tiles.rows() * tiles.outputs();
        // Of whole tiles there are no parts.
        let parts = empty(Shape::from([if blueprint.is_whole() { 2 } else { size }]), DType::F32);
        linear_tiles::launch(
            &client,
            CubeCount::Static(blueprint.cubes as u32, 1, 1),
            CubeDim::new_1d(tiles.units() as u32),
            chunked(x).into_tensor_arg(),
            weight.into_tensor_arg(),
            bias.clone().into_tensor_arg(),
            output.clone().into_tensor_arg(),
            parts.clone().into_tensor_arg(),
            blueprint.share,
            tiles,
            biased,
            element,
        );
        if blueprint.is_whole() {
            return output;
        }
        (blueprint, parts)
    } else if on_planes {
        let (planes, of_processor) = blueprint::planes(rows);
        let blueprint = Blueprint::new(&client, inputs, outputs, planes.tile(), of_processor);
        let parts = parts(&blueprint);
        linear_planes::launch(
            &client,
            CubeCount::Static(blueprint.cubes as u32, 1, 1),
            CubeDim::new_1d(planes.count() as u32 * 32),
            chunked(x).into_tensor_arg(),
            weight.into_tensor_arg(),
            parts.clone().into_tensor_arg(),
            blueprint.share,
            planes,
            element,
        );
        (blueprint, parts)
    } else {
        let vector = vector_size(&weight);
        let tile = units::UNITS * vector;
        let blueprint = Blueprint::new(&client, inputs, outputs, tile, units::CUBES_A_PROCESSOR);
        let parts = parts(&blueprint);
        let of_unit = rows.min(units::ROWS);
        linear_units::launch(
            &client,
            CubeCount::Static(blueprint.cubes as u32, rows.div_ceil(of_unit) as u32, 1),
            CubeDim::new_1d(units::UNITS as u32),
            vector,
            x.into_tensor_arg(),
            weight.into_tensor_arg(),
            parts.clone().into_tensor_arg(),
            blueprint.share,
            of_unit,
            element,
        );
        (blueprint, parts)
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
        blueprint.steps,
        blueprint.share,
        blueprint.tile,
        tile_rows,
        in_tiles,
        biased,
        element,
    );
    output
}
