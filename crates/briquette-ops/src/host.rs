//! What the host computes by itself, and what it reads for that.

#[cfg(feature = "flex")]
mod exp;
#[cfg(feature = "flex")]
pub(crate) mod rows;
#[cfg(feature = "flex")]
mod view;

use burn::tensor::{Device, Int, Tensor};

#[cfg(feature = "flex")]
pub(crate) use self::{
    exp::exp,
    view::{View, computes},
};
use crate::error::{OpError, Result};

/// Whether a device is the host itself (flex), so that reading from it waits for nobody.
pub fn is_host(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    {
        matches!(device.as_dispatch(), burn::backend::DispatchDevice::Flex(_))
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

/// The input of an operation, by its name, read and refused.
#[derive(Clone, Copy)]
pub(crate) struct HostInput(pub(crate) &'static str);

impl HostInput {
    /// The numbers of a tensor, in f32.
    pub(crate) fn floats<const D: usize>(self, x: &Tensor<D>) -> Result<Vec<f32>> {
        x.clone().try_into_vec_as().map_err(|error| OpError::failed(self.0, error))
    }

    /// The numbers of a tensor of integers.
    pub(crate) fn ints<const D: usize>(self, x: &Tensor<D, Int>) -> Result<Vec<i64>> {
        x.clone().try_into_vec_as().map_err(|error| OpError::failed(self.0, error))
    }

    /// Refuses a number that does not fit.
    ///
    /// # Errors
    /// [`OpError::Value`].
    pub(crate) fn value(
        self,
        what: &'static str,
        found: usize,
        fits: bool,
        expected: impl Into<String>,
    ) -> Result<()> {
        OpError::check_value(self.0, what, found, fits, expected)
    }

    /// Refuses a shape that does not fit.
    ///
    /// # Errors
    /// [`OpError::Shape`].
    pub(crate) fn shape<const D: usize>(
        self,
        tensor: &'static str,
        found: [usize; D],
        expected: [usize; D],
    ) -> Result<()> {
        OpError::check_shape(self.0, tensor, found, expected)
    }
}
