//! Products of many rows on Hopper's tensor cores, by CubeK's staged routine.
//!
//! A product of 128 threads at a time (`wgmma`) reads both sides from shared memory, where the
//! tensor memory accelerator has laid them. It needs CubeCL 0.12, so this is built where
//! `next/burn-0.23.patch` is applied.

mod backend;
mod choose;
mod groups;
mod kernel;
mod launch;
mod setting;
mod table;

use briquette_ops::{LinearInput, OpError, Result};
use burn::{backend::Dispatch, tensor::Tensor};

use self::backend::LinearByBackend;
pub(super) use self::{choose::choose, launch::launch, setting::SETTINGS};

/// Ways that [`linear_by`] multiplies.
pub const LINEAR_SETTINGS: usize = SETTINGS.len();

/// [`linear`](crate::linear) of weights that are K-major and no bias, by a setting that the caller
/// says and not the table: for the program that makes the table. All zero where CubeK refuses the
/// setting for these sizes.
///
/// # Errors
/// As [`linear`](crate::linear), and if there are no more than `setting` of them.
pub fn linear_by(input: LinearInput, setting: usize) -> Result<Tensor<2>> {
    super::check(&input)?;
    if setting >= LINEAR_SETTINGS {
        let expected = format!("less than {LINEAR_SETTINGS}");
        let (operation, what) = ("linear", "setting");
        return Err(OpError::Value { operation, what, found: setting, expected });
    }
    let (x, weight) = (input.x.into_dispatch(), input.weight.into_dispatch());
    Ok(Tensor::from_dispatch(Dispatch::linear_by(x, weight, setting)))
}
