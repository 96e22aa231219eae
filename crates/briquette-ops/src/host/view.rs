//! Tensors read where the host computes with them.

use std::ops::{Deref, Range};

use burn::{
    backend::{Flex, tensor::FloatTensor},
    tensor::{DType, Element, Int, Tensor, bf16, f16},
};

use super::{HostInput, is_host};
use crate::error::{OpError, Result};

/// Whether the host computes with a tensor in f32.
pub(crate) fn computes<const D: usize>(x: &Tensor<D>) -> bool {
    x.dtype() == DType::F32 && is_host(&x.device())
}

/// Numbers of a tensor: where they lie, if that is the host's memory and they lie one after
/// another, else a copy.
pub(crate) enum View<T> {
    Shared(FloatTensor<Flex>, Range<usize>),
    Copied(Vec<T>),
}

impl Deref for View<u8> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(words, range) => {
                &words.bytes()[range.start * size_of::<i32>()..range.end * size_of::<i32>()]
            }
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A view of floats.
macro_rules! floats {
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

floats!(f32);
floats!(f16);
floats!(bf16);

/// The host's tensor of numbers that lie without gaps, and their range in it.
fn lying<T>(tensor: FloatTensor<Flex>) -> Option<View<T>> {
    let (start, end) = tensor.layout().contiguous_offsets()?;
    Some(View::Shared(tensor, start..end))
}

/// The numbers of a tensor where they lie, if they are the host's, of this type and without gaps.
fn shared<T, const D: usize>(x: &Tensor<D>, dtype: DType) -> Option<View<T>> {
    if !is_host(&x.device()) || x.dtype() != dtype {
        return None;
    }
    lying(x.clone().try_into_primitive::<Flex>().ok()?)
}

/// The same of the bytes of 32-bit integers.
fn shared_bytes(x: &Tensor<2, Int>) -> Option<View<u8>> {
    if !is_host(&x.device()) || x.dtype() != DType::I32 {
        return None;
    }
    lying(x.clone().try_into_primitive::<Flex>().ok()?)
}

impl HostInput {
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
}
