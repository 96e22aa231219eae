//! Tensors read where the host computes with them.

use std::ops::Deref;
#[cfg(feature = "flex")]
use std::ops::Range;

use burn::tensor::{DType, Device, Element, Int, Tensor};
#[cfg(feature = "flex")]
use burn::{
    backend::{Flex, tensor::FloatTensor},
    tensor::{bf16, f16},
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

/// Numbers of a tensor: where they lie, if that is the host's memory and they lie one after
/// another, else a copy.
pub(crate) enum View<T> {
    #[cfg(feature = "flex")]
    Shared(FloatTensor<Flex>, Range<usize>),
    Copied(Vec<T>),
}

impl Deref for View<f32> {
    type Target = [f32];

    #[inline]
    fn deref(&self) -> &[f32] {
        match self {
            #[cfg(feature = "flex")]
            Self::Shared(tensor, range) => &tensor.storage()[range.clone()],
            Self::Copied(numbers) => numbers,
        }
    }
}

impl Deref for View<u8> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            #[cfg(feature = "flex")]
            Self::Shared(words, range) => {
                &words.bytes()[range.start * size_of::<i32>()..range.end * size_of::<i32>()]
            }
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A view of numbers of 16 bits.
#[cfg(feature = "flex")]
macro_rules! halves {
    ($number:ty) => {
        impl Deref for View<$number> {
            type Target = [$number];

            #[inline]
            fn deref(&self) -> &[$number] {
                match self {
                    Self::Shared(tensor, range) => &tensor.storage()[range.clone()],
                    Self::Copied(numbers) => numbers,
                }
            }
        }
    };
}

#[cfg(feature = "flex")]
halves!(f16);
#[cfg(feature = "flex")]
halves!(bf16);

/// The host's tensor of numbers that lie without gaps, and their range in it.
#[cfg(feature = "flex")]
fn lying<T>(tensor: FloatTensor<Flex>) -> Option<View<T>> {
    let (start, end) = tensor.layout().contiguous_offsets()?;
    Some(View::Shared(tensor, start..end))
}

/// The numbers of a tensor where they lie, if they are the host's, of this type and without gaps.
fn shared<T, const D: usize>(x: &Tensor<D>, dtype: DType) -> Option<View<T>> {
    #[cfg(feature = "flex")]
    if is_host(&x.device()) && x.dtype() == dtype {
        return lying(x.clone().try_into_primitive::<Flex>().ok()?);
    }
    let _ = (x, dtype);
    None
}

/// The same of the bytes of 32-bit integers.
fn shared_bytes(x: &Tensor<2, Int>) -> Option<View<u8>> {
    #[cfg(feature = "flex")]
    if is_host(&x.device()) && x.dtype() == DType::I32 {
        return lying(x.clone().try_into_primitive::<Flex>().ok()?);
    }
    let _ = x;
    None
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

    /// The numbers of a tensor, of the type of the view, which are not changed.
    pub(crate) fn view<T: Element, const D: usize>(self, x: &Tensor<D>) -> Result<View<T>> {
        if let Some(view) = shared(x, T::dtype()) {
            return Ok(view);
        }
        let numbers = x.clone().cast(T::dtype()).try_into_vec_as();
        numbers.map(View::Copied).map_err(|error| OpError::failed(self.0, error))
    }

    /// The bytes of 32-bit words.
    pub(crate) fn bytes(self, words: &Tensor<2, Int>) -> Result<View<u8>> {
        if let Some(view) = shared_bytes(words) {
            return Ok(view);
        }
        let words = words.clone().cast(DType::I32).try_into_data();
        let words = words.map_err(|error| OpError::failed(self.0, error))?;
        Ok(View::Copied(words.as_bytes().to_vec()))
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
