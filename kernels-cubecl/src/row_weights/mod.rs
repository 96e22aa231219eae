mod extension;
mod kernel;

use briquette_ops::{Result, RowWeightsInput};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::{DType, Shape, Tensor},
};
use burn_cubecl::{ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::{CubeCount, CubeDim};

use self::extension::RowWeightsBackend;
use crate::check::Check;

/// The most columns [`row_weights`] takes: every row looks at all of them.
const MOST_COLUMNS: usize = 1 << 13;

/// For each row the sum of the scores of its columns, f32, `[batch, heads, height]`: what an entry of EMS weighs.
///
/// A unit a row adds its columns up in order, in one launch: every row looks at all columns, 256 of them in shared memory
/// at a time. It reads three numbers a column and 256 rows, compares as many as rows times columns, and writes one number
/// a row.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes do not fit, there is no row or column, there are more than 8 192 columns, or
/// the device has no kernels or cannot launch so much.
pub fn row_weights(input: RowWeightsInput) -> Result<Tensor<3>> {
    let check = Check::new("row_weights", &input.rows.device())?;
    let RowWeightsInput { rows, positions, scores, height, bounds: (least, most) } = input;
    let dims @ [batch, heads, columns] = rows.dims();
    let some = |what, number| check.value(what, number, number > 0, "1 or more");
    some("batch", batch)?;
    some("heads", heads)?;
    some("columns", columns)?;
    some("rows", height)?;
    check.at_most("the number of columns", columns, MOST_COLUMNS)?;
    check.shape("positions", positions.dims(), dims)?;
    check.shape("scores", scores.dims(), dims)?;
    check.f32("scores", scores.dtype())?;
    check.countable("rows", &[batch, heads, height])?;
    check.countable("columns", &dims)?;
    check.cubes([height.div_ceil(kernel::UNITS), batch * heads, 1])?;
    check.tensors(4)?;
    let ints = rows.dtype();
    Ok(Tensor::from_dispatch(Dispatch::row_weights(
        rows.into_dispatch(),
        positions.cast(ints).into_dispatch(),
        scores.into_dispatch(),
        height,
        least,
        most,
    )))
}

/// Rows and positions.
fn launch(
    ints: [CubeTensor; 2],
    scores: CubeTensor,
    height: usize,
    [least, most]: [f32; 2],
) -> CubeTensor {
    let (client, device, dtype) = (scores.client.clone(), scores.device.clone(), ints[0].dtype);
    let shape = scores.shape();
    let shape = Shape::from([shape[0], shape[1], height]);
    let weights = empty_device_dtype(client.clone(), device, shape.clone(), DType::F32);
    let [rows, positions] = ints.map(CubeTensor::into_tensor_arg);
    kernel::row_weights::launch(
        &client,
        CubeCount::Static(height.div_ceil(kernel::UNITS) as u32, (shape[0] * shape[1]) as u32, 1),
        CubeDim::new_1d(kernel::UNITS as u32),
        rows,
        positions,
        scores.into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        least,
        most,
        dtype_to_storage_type(dtype),
    );
    weights
}
