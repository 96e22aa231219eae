//! Products of many rows on Hopper's tensor cores: a cube of one or two groups of 128 units,
//! which multiply 64 rows each from shared memory (`wgmma`), and a plane that has the tensor memory
//! accelerator copy what comes next. It needs CubeCL 0.12, so this is built where
//! `next/burn-0.23.patch` is applied.

mod backend;
mod choose;
mod kernel;
mod launch;
mod settings;
mod table;

use briquette_ops::{LinearInput, OpError, Result};
use burn::{
    backend::{Dispatch, cubecl::dtype_to_storage_type},
    tensor::Tensor,
};

use self::backend::LinearByBackend;
pub use self::settings::LINEAR_SETTINGS;
pub(super) use self::{
    choose::{FEWEST_ROWS, choose},
    launch::launch,
};
use crate::common::{check::Check, tile::wgmma::multiplies_groups};

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
