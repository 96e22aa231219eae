mod extension;
mod kernel;

use briquette_ops::{Result, RmsNormInput, RmsNormOutput};
use burn::{
    backend::{Dispatch, TensorMetadata, cubecl::dtype_to_storage_type},
    tensor::Tensor,
};
use burn_cubecl::{CubeBackend, ops::numeric::empty_device_dtype, tensor::CubeTensor};
use cubecl::prelude::CubeDim;

use self::extension::{Residual, RmsNormBackend};
use crate::{check::Check, rows::cubes_of_rows, vector::vector_size};

/// Rows with a residual added, and normalised by their root mean square, in one launch: what stands before each block of a
/// layer, where tensor operations take ten.
///
/// A cube a row. It adds in f32 and rounds the sum, adds up squares in an order that is always the same, and reads the sum
/// once more, from caches. It reads two numbers a channel and writes two, or one each where nothing is added.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no row or channel, or the device has no
/// kernels or cannot launch so much.
pub fn rms_norm(input: RmsNormInput) -> Result<RmsNormOutput> {
    check(&input)?;
    let RmsNormInput { x, residual, weight, epsilon, weight_less_one } = input;
    let adds = residual.is_some();
    let residual = match residual {
        Some(rows) => Residual::Rows { rows: rows.into_dispatch() },
        None => Residual::Nothing,
    };
    let weight = weight.into_dispatch();
    let (sum, normal) = Dispatch::rms_norm(
        x.clone().into_dispatch(),
        residual,
        weight,
        epsilon as f32,
        weight_less_one,
    );
    let sum = if adds { Tensor::from_dispatch(sum) } else { x };
    Ok(RmsNormOutput { sum, normal: Tensor::from_dispatch(normal) })
}

fn check(input: &RmsNormInput) -> Result<()> {
    let RmsNormInput { x, residual, weight, .. } = input;
    let check = Check::new("rms_norm", &x.device())?;
    let [rows, channels] = x.dims();
    check.value("rows", rows, rows > 0, "1 or more")?;
    check.value("channels", channels, channels > 0, "1 or more")?;
    if let Some(residual) = residual {
        check.shape("residual", residual.dims(), [rows, channels])?;
        check.same_type("residual", residual.dtype(), x.dtype())?;
    }
    check.shape("weight", weight.dims(), [channels])?;
    check.same_type("weight", weight.dtype(), x.dtype())?;
    check.countable("x", &[rows, channels])?;
    check.cubes(cubes_of_rows(rows))?;
    check.tensors(5)?;
    let hardware = &check.client().properties().hardware;
    check.at_most("units of a cube", kernel::UNITS, hardware.max_units_per_cube as usize)
}

fn launch(
    x: CubeTensor,
    residual: Residual<CubeBackend>,
    weight: CubeTensor,
    epsilon: f32,
    weight_less_one: bool,
) -> (CubeTensor, CubeTensor) {
    let (client, shape) = (x.client.clone(), x.shape());
    let empty = || empty_device_dtype(client.clone(), x.device.clone(), shape.clone(), x.dtype);
    let normal = empty();
    let (residual, sum) = match residual {
        Residual::Nothing => (None, None),
        Residual::Rows { rows } => (Some(rows), Some(empty())),
    };
    let adds = residual.is_some();
    let all = [Some(&x), residual.as_ref(), sum.as_ref(), Some(&normal)];
    let width = all.into_iter().flatten().map(vector_size).min().unwrap_or(1);
    let element = dtype_to_storage_type(x.dtype);
    // What is not looked at: another tensor stands in.
    let written = sum.clone().unwrap_or_else(|| normal.clone());
    let of_residual = residual.unwrap_or_else(|| x.clone());
    kernel::rms_norm::launch(
        &client,
        crate::rows::cube_count(shape[0]),
        CubeDim::new_1d(kernel::UNITS as u32),
        width,
        x.clone().into_tensor_arg(),
        of_residual.into_tensor_arg(),
        weight.into_tensor_arg(),
        written.into_tensor_arg(),
        normal.clone().into_tensor_arg(),
        epsilon,
        adds,
        weight_less_one,
        element,
    );
    (sum.unwrap_or(x), normal)
}
