use std::collections::BTreeSet;

use burn::tensor::{DType, Device};
use burn_store::{
    ApplyError, FloatCastAdapter, ModuleAdapter, ModuleSnapshot, PyTorchToBurnAdapter,
    burn_pack::Tensor,
};
use rayon::prelude::*;

use crate::{
    Architecture, Error, Result,
    checkpoint::weights::Weights,
    nn::projection::{Projection, Projections},
};

/// Matrices that are read at once, each by a thread: so many are in memory beside the model.
const AT_ONCE: usize = 4;

/// The parameter that is f32 in a model of any type: experts are chosen by small differences.
const IN_F32: &str = "e_score_correction_bias";

/// Brings the weights of a checkpoint into parts of a model, in a type, on a device.
pub(crate) struct Fill<'a> {
    pub(crate) weights: &'a Weights,
    pub(crate) architecture: Architecture,
    pub(crate) device: &'a Device,
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
    ) -> Result<()> {
        let taken = self.matrices(prefix, projections(part))?;
        tensors.retain(|tensor| !taken.contains(&tensor.name));
        for tensor in &mut tensors {
            tensor.name = tensor.name.split_off(prefix.len());
        }
        let in_f32 = tensors.extract_if(.., |tensor| tensor.name.ends_with(IN_F32)).collect();
        Self::apply(part, prefix, in_f32, DType::F32)?;
        Self::apply(part, prefix, tensors, self.dtype)
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

    /// Takes the matrices of linear layers that are not quantized, and returns their paths.
    fn matrices(&self, prefix: &str, mut all: Projections<'_>) -> Result<BTreeSet<String>> {
        let mut taken = BTreeSet::new();
        all.retain(|(_, projection)| projection.quantized().is_none());
        for several in all.chunks_mut(AT_ONCE) {
            let numbers = several.par_iter().map(|(path, _)| {
                let path = format!("{prefix}{path}.weight");
                let name = self.architecture.checkpoint_name(&path);
                Ok((path, self.weights.numbers(&name, self.dtype)?))
            });
            let numbers = numbers.collect::<Result<Vec<_>>>()?;
            for ((path, numbers), (_, projection)) in numbers.into_iter().zip(several) {
                if let (Some(numbers), Projection::Dense(linear)) = (numbers, &**projection) {
                    let linear = linear.clone().with_stored(numbers, self.device);
                    **projection = Projection::Dense(linear);
                    taken.insert(path);
                }
            }
        }
        Ok(taken)
    }
}
