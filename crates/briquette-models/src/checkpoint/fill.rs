use std::collections::BTreeSet;

use burn::tensor::{DType, TensorData};
use burn_store::{
    ApplyError, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, PyTorchToBurnAdapter,
    burn_pack::Tensor,
};
use rayon::prelude::*;

use crate::{
    Architecture, Error, Result,
    checkpoint::{progress::Progress, weights::Weights},
    nn::projection::{Projection, Projections},
};

/// Numbers that a thread converts at once.
const AT_ONCE: usize = 1 << 14;

/// The parameter that is f32 in a model of any type: experts are chosen by small differences.
const IN_F32: &str = "e_score_correction_bias";

/// Brings the weights of a checkpoint into parts of a model, in a type, each on the device of its
/// parameter.
pub(crate) struct Fill<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) architecture: Architecture,
    pub(crate) dtype: DType,
}

impl Fill<'_> {
    /// Reads these tensors, whose names begin with `prefix`, into a part of the model. Matrices of
    /// linear layers are taken as they are stored; Burn's adapter would transpose them.
    pub(crate) fn part<M: ModuleSnapshot>(
        &self,
        part: &mut M,
        prefix: &str,
        mut tensors: Vec<Tensor>,
        projections: fn(&mut M) -> Projections<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<()> {
        let taken = self.matrices(prefix, projections(part), progress)?;
        tensors.retain(|tensor| !taken.contains(&tensor.name));
        let others: Vec<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
        for tensor in &mut tensors {
            tensor.name = tensor.name.split_off(prefix.len());
        }
        let in_f32 = tensors.extract_if(.., |tensor| tensor.name.ends_with(IN_F32)).collect();
        Self::apply(part, prefix, in_f32, DType::F32)?;
        Self::apply(part, prefix, tensors, self.dtype)?;
        others.iter().for_each(|path| progress.count(path));
        Ok(())
    }

    fn apply<M: ModuleSnapshot>(
        part: &mut M,
        prefix: &str,
        tensors: Vec<Tensor>,
        dtype: DType,
    ) -> Result<()> {
        let adapter = PyTorchToBurnAdapter.chain(FloatCastAdapter::to(dtype));
        let result = part.apply(tensors, None, Some(Box::new(adapter)), true);
        if let Some(error) = result.errors.into_iter().next() {
            let (ApplyError::ShapeMismatch { path, .. }
            | ApplyError::DTypeMismatch { path, .. }
            | ApplyError::AdapterError { path, .. }
            | ApplyError::LoadError { path, .. }) = &error;
            let tensor = format!("{prefix}{path}");
            return Err(Error::LoadTensor { tensor, message: error.to_string() });
        }
        match result.unused.first() {
            Some(path) => Err(Error::LoadTensor {
                tensor: format!("{prefix}{path}"),
                message: "no parameter of the model took it".into(),
            }),
            None => Ok(()),
        }
    }

    /// Takes the matrices of linear layers, and returns their paths.
    fn matrices(
        &self,
        prefix: &str,
        all: Projections<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<BTreeSet<String>> {
        let mut taken = BTreeSet::new();
        for (path, projection) in all {
            let Projection::Dense(linear) = &*projection else { continue };
            let path = format!("{prefix}{path}.weight");
            let name = self.architecture.checkpoint_name(&path);
            let device = linear.weight.lazy_device();
            *projection = if let Some(matrix) = self.weights.quantized(&name, &device)? {
                projection.clone().with_quantized(matrix)
            } else if let Some(numbers) = self.weights.numbers(&name)? {
                Projection::Dense(linear.clone().with_stored(converted(numbers, self.dtype)))
            } else {
                continue;
            };
            progress.count(&path);
            taken.insert(path);
        }
        Ok(taken)
    }
}

/// The same numbers in another type, on all cores.
fn converted(data: TensorData, dtype: DType) -> TensorData {
    let stored = data.dtype();
    if stored == dtype {
        return data;
    }
    let bytes = data.as_bytes();
    let count = bytes.len().checked_div(stored.size()).unwrap_or(0);
    let mut numbers = vec![0; count.saturating_mul(dtype.size())];
    let parts = bytes.par_chunks(AT_ONCE.saturating_mul(stored.size()));
    let places = numbers.par_chunks_mut(AT_ONCE.saturating_mul(dtype.size()));
    parts.zip(places).for_each(|(part, place)| {
        let count = part.len().checked_div(stored.size()).unwrap_or(0);
        let part = TensorData::from_bytes_vec(part.to_vec(), [count], stored);
        place.copy_from_slice(part.convert_dtype(dtype).as_bytes());
    });
    TensorData::from_bytes_vec(numbers, data.shape(), dtype)
}
