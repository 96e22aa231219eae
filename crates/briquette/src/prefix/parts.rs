use std::collections::BTreeMap;

use burn::tensor::{DType, Device, Int, Tensor, TensorData, kind::Basic};

use super::PrefixError;
use crate::{Error, Result, device::check_type};

/// Named numbers and tensors: the form in which a store is written to a file and read from it.
///
/// Names of parts of parts are joined by dots, as in `layer.0.store.keys`.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    pub(super) numbers: BTreeMap<String, Vec<usize>>,
    pub(super) tensors: BTreeMap<String, TensorData>,
}

impl Parts {
    /// Puts numbers in.
    pub fn put_numbers(&mut self, name: &str, numbers: impl Into<Vec<usize>>) {
        self.numbers.insert(name.to_owned(), numbers.into());
    }

    /// Puts a tensor in, read from its device.
    ///
    /// # Errors
    /// [`Error::Execution`] if the device failed.
    pub fn put<const D: usize, K: Basic>(&mut self, name: &str, x: &Tensor<D, K>) -> Result<()> {
        let data = x.clone().try_into_data();
        let data = data.map_err(|error| Error::Execution(error.to_string()))?;
        self.tensors.insert(name.to_owned(), data);
        Ok(())
    }

    /// Puts 64-bit numbers in, exactly.
    pub fn put_exact(&mut self, name: &str, numbers: Vec<f64>) {
        let length = numbers.len();
        self.tensors.insert(name.to_owned(), TensorData::new(numbers, [length]));
    }

    /// Puts parts in, with `name` before their names.
    pub fn put_parts(&mut self, name: &str, parts: Self) {
        let below = |inner: String| format!("{name}.{inner}");
        self.numbers.extend(parts.numbers.into_iter().map(|(inner, part)| (below(inner), part)));
        self.tensors.extend(parts.tensors.into_iter().map(|(inner, part)| (below(inner), part)));
    }

    /// Takes numbers out.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there are none of this name.
    pub fn take_numbers(&mut self, name: &str) -> Result<Vec<usize>> {
        let missing = || PrefixError::contents(name, "is missing").into();
        self.numbers.remove(name).ok_or_else(missing)
    }

    /// Takes one number out.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there is none of this name, or more.
    pub fn take_number(&mut self, name: &str) -> Result<usize> {
        Ok(self.take_list(name, 1)?.swap_remove(0))
    }

    /// Takes a list of `length` numbers out.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there are others.
    pub fn take_list(&mut self, name: &str, length: usize) -> Result<Vec<usize>> {
        let numbers = self.take_numbers(name)?;
        if numbers.len() == length {
            return Ok(numbers);
        }
        let reason = format!("has {} numbers, expected {length}", numbers.len());
        Err(PrefixError::contents(name, reason).into())
    }

    /// Whether it holds a tensor of this name.
    pub fn holds(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Takes a tensor of floats out, in the type it was put in.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there is none of this name and shape, or [`Error::DataType`] if
    /// the device does not support the type.
    pub fn take_float<const D: usize>(
        &mut self,
        name: &str,
        dims: [usize; D],
        device: &Device,
    ) -> Result<Tensor<D>> {
        let data = self.take_data(name, &dims)?;
        let dtype = data.dtype();
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
            let reason = format!("is {dtype:?}, expected floats");
            return Err(PrefixError::contents(name, reason).into());
        }
        check_type("the prefix", dtype, device)?;
        Ok(Tensor::from_data(data, (device, dtype)))
    }

    /// Takes a tensor of integers out, as `dtype`, or as the device holds integers.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there is none of this name and shape.
    pub fn take_int<const D: usize>(
        &mut self,
        name: &str,
        dims: [usize; D],
        dtype: Option<DType>,
        device: &Device,
    ) -> Result<Tensor<D, Int>> {
        let data = self.take_data(name, &dims)?;
        if !matches!(data.dtype(), DType::I32 | DType::I64) {
            let reason = format!("is {:?}, expected integers", data.dtype());
            return Err(PrefixError::contents(name, reason).into());
        }
        let dtype = dtype.unwrap_or_else(|| device.settings().int_dtype.into());
        Ok(Tensor::from_data(data, (device, dtype)))
    }

    /// Takes 64-bit numbers out.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] if there are none of this name.
    pub fn take_exact(&mut self, name: &str, length: usize) -> Result<Vec<f64>> {
        let data = self.take_data(name, &[length])?;
        let fail = |error| PrefixError::contents(name, format!("is no list of f64: {error:?}"));
        Ok(data.try_to_vec::<f64>().map_err(fail)?)
    }

    /// Takes all parts out whose names begin with `name`.
    pub fn take_parts(&mut self, name: &str) -> Self {
        Self { numbers: below(&mut self.numbers, name), tensors: below(&mut self.tensors, name) }
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// [`PrefixError::Contents`] otherwise.
    pub(crate) fn finish(self) -> Result<()> {
        let left = self.numbers.into_keys().chain(self.tensors.into_keys()).next();
        match left {
            Some(name) => Err(PrefixError::contents(&name, "belongs to nothing").into()),
            None => Ok(()),
        }
    }

    fn take_data(&mut self, name: &str, dims: &[usize]) -> Result<TensorData> {
        let missing = || PrefixError::contents(name, "is missing");
        let data = self.tensors.remove(name).ok_or_else(missing)?;
        if data.shape().as_slice() == dims {
            return Ok(data);
        }
        let reason = format!("has shape {:?}, expected {dims:?}", data.shape().as_slice());
        Err(PrefixError::contents(name, reason).into())
    }
}

/// Takes the parts below a name, and strips that name from theirs.
fn below<T>(all: &mut BTreeMap<String, T>, name: &str) -> BTreeMap<String, T> {
    let start = format!("{name}.");
    let from = all.range(start.clone()..).map(|(name, _)| name);
    let names: Vec<String> = from.take_while(|name| name.starts_with(&start)).cloned().collect();
    let take = |name: String| {
        let inner = name.strip_prefix(&start)?;
        all.remove(&name).map(|part| (inner.to_owned(), part))
    };
    names.into_iter().filter_map(take).collect()
}
