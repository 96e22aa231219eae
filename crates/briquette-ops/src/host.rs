//! Tensors read where the host computes with them.

use burn::tensor::{DType, Device, Int, Tensor};

use crate::error::{OpError, Result};

/// Whether a device is the host itself (flex), so that reading from it waits for nobody.
pub(crate) fn is_host(device: &Device) -> bool {
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

    /// The bytes of 32-bit words.
    pub(crate) fn bytes(self, words: &Tensor<2, Int>) -> Result<Vec<u8>> {
        let words = words.clone().cast(DType::I32).try_into_data();
        Ok(words.map_err(|error| OpError::failed(self.0, error))?.as_bytes().to_vec())
    }

    /// Integers that count or name at most `most`.
    pub(crate) fn at_most<const D: usize>(
        self,
        what: &'static str,
        x: &Tensor<D, Int>,
        most: usize,
    ) -> Result<Vec<usize>> {
        let all = self.ints(x)?.into_iter();
        let all: Vec<usize> =
            all.map(|number| usize::try_from(number).unwrap_or(usize::MAX)).collect();
        let largest = all.iter().copied().max().unwrap_or(0);
        self.value(what, largest, largest <= most, format!("at most {most}"))?;
        Ok(all)
    }

    /// Integers of which each is at least the one before and at most `most`.
    pub(crate) fn ascending(
        self,
        what: &'static str,
        x: &Tensor<1, Int>,
        most: usize,
    ) -> Result<Vec<usize>> {
        let all = self.at_most(what, x, most)?;
        if let Some(two) = all.windows(2).find(|two| two[0] > two[1]) {
            self.value(what, two[1], false, format!("at least the {} before", two[0]))?;
        }
        Ok(all)
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
        if fits {
            return Ok(());
        }
        Err(OpError::Value { operation: self.0, what, found, expected: expected.into() })
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
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_vec(), expected.to_vec());
        Err(OpError::Shape { operation: self.0, tensor, found, expected })
    }
}
