mod backend;
mod kernel;

use briquette_ops::{GatedInput, Result};
use burn::{backend::Dispatch, tensor::Tensor};

pub(super) use self::backend::GatedBackend;
use crate::common::{check::Check, rows::cubes_of_rows};

/// One side of a gated feed-forward network, times the activation of the other, in one launch. The
/// two may be halves of one product. The activation is computed in f32 and rounded, then the
/// product.
///
/// It reads two numbers and writes one.
///
/// # Errors
/// [`OpError`](briquette_ops::OpError) if shapes or types do not fit, there is no row or channel,
/// or the device has no kernels or cannot launch so much.
pub fn gated(input: GatedInput) -> Result<Tensor<2>> {
    let GatedInput { gate, up, activation } = input;
    let check = Check::new("gated", &gate.device())?;
    let [rows, channels] = gate.dims();
    check.some([("rows", rows), ("channels", channels)])?;
    check.shape("up", up.dims(), [rows, channels])?;
    check.same_type("up", up.dtype(), gate.dtype())?;
    check.countable("gate", &[rows, channels])?;
    check.cubes(cubes_of_rows((rows * channels).div_ceil(kernel::UNITS)))?;
    check.tensors(3)?;
    check.units(kernel::UNITS)?;
    let (gate, up) = (gate.into_dispatch(), up.into_dispatch());
    Ok(Tensor::from_dispatch(Dispatch::gated(gate, up, activation)))
}
