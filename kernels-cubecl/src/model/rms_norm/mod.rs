mod backend;
mod kernel;

use briquette_ops::{Result, RmsNormInput, RmsNormOutput};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::RmsNormBackend;
use crate::common::{check::Check, optional::Optional, rows::cubes_of_rows};

/// Rows with a residual added, and normalised by their root mean square, in one launch: what stands
/// before each block of a layer, where tensor operations take ten.
///
/// One cube per row. It adds in f32 and rounds the sum, adds up squares in an order that is always
/// the same, and reads the sum once more, from caches. It reads two numbers per channel and writes
/// two, or one each where nothing is added.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no row or channel,
/// or the device has no kernels or cannot launch so much.
pub fn rms_norm(input: RmsNormInput) -> Result<RmsNormOutput> {
    check(&input)?;
    let RmsNormInput { x, residual, weight, epsilon, weight_less_one } = input;
    let adds = residual.is_some();
    let (sum, normal) = Dispatch::rms_norm(
        x.clone().into_dispatch(),
        Optional::of(residual),
        weight.into_dispatch(),
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
    check.some([("rows", rows), ("channels", channels)])?;
    if let Some(residual) = residual {
        check.shape("residual", residual.dims(), [rows, channels])?;
        check.same_type("residual", residual.dtype(), x.dtype())?;
    }
    check.shape("weight", weight.dims(), [channels])?;
    check.same_type("weight", weight.dtype(), x.dtype())?;
    check.countable("x", &[rows, channels])?;
    check.cubes(cubes_of_rows(rows))?;
    check.tensors(5)?;
    check.units(kernel::UNITS)
}
