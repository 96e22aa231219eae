use burn::{
    backend::{TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape},
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use super::{
    blueprint::{self, Blueprint, STEP},
    extension::Added,
    merge::{self, linear_merge},
    planes::linear_planes,
    units::{self, linear_units},
};
use crate::{
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

    let on_planes = blueprint::divides(inputs, outputs)
        && is_chunked(&weight)
        && multiplies(&client, dtype, STEP);
    let (blueprint, parts) = if on_planes {
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
    let bias = match &added {
        Added::Bias { bias } => bias.clone().into_tensor_arg(),
        // Never looked at.
        Added::Nothing => parts.as_tensor_alias(0),
    };
    linear_merge::launch(
        &client,
        CubeCount::Static(outputs.div_ceil(merge::UNITS * vector) as u32, rows as u32, 1),
        CubeDim::new_1d(merge::UNITS as u32),
        vector,
        parts.clone().into_tensor_arg(),
        bias,
        output.clone().into_tensor_arg(),
        blueprint.steps,
        blueprint.share,
        blueprint.tile,
        matches!(added, Added::Bias { .. }),
        element,
    );
    output
}
