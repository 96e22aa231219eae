//! Products of many rows on Hopper's tensor cores: a cube of one or two groups of 128 units,
//! which multiply 64 rows each from shared memory (`wgmma`), and a plane that has the tensor memory
//! accelerator copy what comes next. It needs CubeCL 0.12, so this is built where
//! `next/burn-0.23.patch` is applied.

mod backend;
mod choose;
mod gate;
mod kernel;
mod launch;
mod settings;
mod table;

use briquette_ops::{GatedLinearInput, LinearInput, OpError, Result};
use burn::{
    backend::{Dispatch, cubecl::dtype_to_storage_type},
    tensor::Tensor,
};

use self::backend::LinearGroupsBackend;
pub use self::settings::LINEAR_SETTINGS;
pub(super) use self::{
    choose::{FEWEST_ROWS, choose},
    launch::launch,
};
use crate::common::{check::Check, optional::Optional, tile::wgmma::multiplies_groups};

/// Whether [`gated_linear`] is known to be the way to compute this.
pub(crate) fn takes_gated(input: &GatedLinearInput) -> bool {
    let GatedLinearInput { x, weight, .. } = input;
    let Ok(check) = Check::new("gated_linear", &x.device()) else { return false };
    x.dims()[0] >= FEWEST_ROWS
        && weight.dims()[1].is_multiple_of(16)
        && super::on_tensor_cores(&check, x.dtype(), weight)
        && multiplies_groups(check.client(), dtype_to_storage_type(x.dtype()))
}

/// [`linear`](crate::linear) and [`gated`](crate::gated) in one launch, where weights are K-major:
/// a tile has outputs of both sides, and the product of both is never written. Elsewhere it is.
///
/// # Errors
/// As [`linear`](crate::linear), and if the device is no Hopper.
pub fn gated_linear(input: GatedLinearInput) -> Result<Tensor<2>> {
    input.check()?;
    if !takes_gated(&input) {
        return Err(OpError::Device { operation: "gated_linear" });
    }
    let (input, activation) = input.into_product();
    super::check(&input)?;
    let LinearInput { x, weight, bias } = input;
    let (x, weight, bias) = (x.into_dispatch(), weight.into_dispatch(), Optional::of(bias));
    let found = Dispatch::gated_linear(x, weight, bias, activation);
    Ok(Tensor::from_dispatch(found))
}

/// [`linear`](crate::linear) without bias by one of [`LINEAR_SETTINGS`], and not by the table: for
/// the program that makes the table.
///
/// # Errors
/// As [`linear`](crate::linear), and if there is no such setting, or the device is no Hopper.
pub fn linear_by(input: LinearInput, setting: usize) -> Result<Tensor<2>> {
    let operation = "linear";
    super::check(&input)?;
    let check = Check::new(operation, &input.x.device())?;
    if !multiplies_groups(check.client(), dtype_to_storage_type(input.x.dtype())) {
        return Err(OpError::Device { operation });
    }
    check.at_most("setting", setting, LINEAR_SETTINGS.len() - 1)?;
    let (x, weight) = (input.x.into_dispatch(), input.weight.into_dispatch());
    Ok(Tensor::from_dispatch(Dispatch::linear_by(x, weight, setting)))
}
