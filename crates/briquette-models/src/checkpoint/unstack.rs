use std::sync::Arc;

use briquette_ops::WeightFormat;
use burn_store::burn_pack::{Bytes, Error as PackError, Tensor};
use rayon::prelude::*;

use crate::{
    Architecture, Error, ModelConfig, Result,
    checkpoint::{
        mxfp4::Mxfp4,
        stacked::{Outputs, Stacked},
        tensors::Stored,
        weights::{Quantized, Weights},
    },
};

/// Shows what a checkpoint holds of all experts of a layer in one tensor as the tensors of each.
///
/// # Errors
/// [`Error::LoadTensor`] for a tensor that is not that of the experts of the configuration.
pub(crate) fn unstack(weights: &mut Weights, config: &ModelConfig) -> Result<()> {
    let Some(experts) = &config.experts else { return Ok(()) };
    let (architecture, experts) = (config.architecture, experts.experts);
    for layer in 0..config.num_hidden_layers {
        for stacked in architecture.stacked() {
            let layer = Layer { architecture, layer, experts, stacked };
            layer.numbers(weights)?;
            layer.blocks(weights)?;
        }
    }
    Ok(())
}

/// Some tensors of a layer.
struct Layer {
    architecture: Architecture,
    layer: usize,
    experts: usize,
    stacked: &'static Stacked,
}

impl Layer {
    /// The name of a tensor in the checkpoint.
    fn named(&self, path: &str) -> String {
        let path = format!("model.layers.{}.mlp.experts.{path}", self.layer);
        self.architecture.checkpoint_name(&path)
    }

    /// What the projections of all experts are called, with the outputs of each.
    fn parts(&self, parameter: &str) -> impl Iterator<Item = (String, usize, Outputs)> {
        let named = move |expert: usize| {
            self.stacked.projections.iter().map(move |(projection, outputs)| {
                (self.named(&format!("{expert}.{projection}.{parameter}")), expert, *outputs)
            })
        };
        (0..self.experts).flat_map(named)
    }

    /// Matrices, and biases.
    fn numbers(&self, weights: &mut Weights) -> Result<()> {
        for (ending, parameter) in [("", "weight"), ("_bias", "bias")] {
            let name = self.named(&format!("{}{ending}", self.stacked.name));
            let Some((file, whole)) = weights.remove(&name) else { continue };
            let shape = whole.tensor.shape.as_slice();
            let each = Each::of(&whole, self.experts).ok_or_else(|| self.misfit(name, shape))?;
            for (name, expert, outputs) in self.parts(parameter) {
                let part = each.part(name.clone(), expert, outputs);
                weights.insert(file, name, part.into());
            }
        }
        Ok(())
    }

    /// Matrices in blocks.
    fn blocks(&self, weights: &mut Weights) -> Result<()> {
        let named = |ending| self.named(&format!("{}{ending}", self.stacked.name));
        let Some((file, blocks)) = weights.remove(&named("_blocks")) else { return Ok(()) };
        let shape = blocks.tensor.shape.to_vec();
        let Some((_, scales)) = weights.remove(&named("_scales")) else {
            let (tensor, shape) = (named("_scales"), shape.into_iter().take(3).collect());
            return Err(Error::MissingTensor { tensor, shape, count: 1 });
        };
        let all = Mxfp4::of(blocks, scales, self.experts);
        let all = all.ok_or_else(|| self.misfit(named("_blocks"), &shape))?;
        for (name, expert, outputs) in self.parts("weight") {
            let rows = all.rows(expert, outputs);
            let numbers = rows.deferred(name.clone()).into();
            let read = Arc::new(move |name: &str, device: &_| rows.quantized(name, device));
            let quantized = Quantized { format: WeightFormat::Q8_0, read };
            weights.insert_quantized(file, name, numbers, quantized);
        }
        Ok(())
    }

    /// The error of a tensor that does not hold something of each expert.
    fn misfit(&self, tensor: String, shape: &[usize]) -> Error {
        let message = format!("its shape {shape:?} is not that of {} experts", self.experts);
        Error::LoadTensor { tensor, message }
    }
}

/// The tensors of equal size that lie one behind the other in a tensor.
struct Each<'a> {
    whole: &'a Stored,
    /// `[inputs, outputs]` or `[outputs]`.
    shape: &'a [usize],
    outputs: usize,
}

impl<'a> Each<'a> {
    /// `None` for a tensor that is not of so many experts.
    fn of(whole: &'a Stored, experts: usize) -> Option<Self> {
        match whole.tensor.shape.as_slice() {
            // Many experts without a number would lie in a file of no length.
            [count, shape @ ..] if *count == experts && !shape.contains(&0) => {
                Some(Self { whole, shape, outputs: *shape.last()? })
            }
            _ => None,
        }
    }

    /// The outputs of a projection of one expert: `[outputs, inputs]` or `[outputs]`, as linear
    /// layers are stored. Its bytes alone are read.
    fn part(&self, name: String, expert: usize, chosen: Outputs) -> Tensor {
        let (whole, outputs, dtype) = (self.whole.clone(), self.outputs, self.whole.tensor.dtype);
        let size = dtype.size();
        let length = self.shape.iter().product::<usize>().saturating_mul(size);
        let start = expert.saturating_mul(length);
        let mut shape = self.shape.to_vec();
        shape.reverse();
        if let Some(first) = shape.first_mut() {
            *first = chosen.among(outputs).len();
        }
        let bytes = shape.iter().product::<usize>().saturating_mul(size);
        let provider = move || match whole.bytes(start..start.saturating_add(length)) {
            Ok(bytes) => Ok(Bytes::from_bytes_vec(transposed(&bytes, outputs, size, chosen))),
            Err(error) => Err(PackError::IoError(error.to_string())),
        };
        Tensor::deferred(name, dtype, shape, None, bytes, provider)
    }
}

/// The chosen columns of a matrix of numbers of `size` bytes, one behind the other.
fn transposed(bytes: &[u8], columns: usize, size: usize, chosen: Outputs) -> Vec<u8> {
    let rows = bytes.chunks_exact(columns.saturating_mul(size).max(1));
    let column = rows.len().saturating_mul(size);
    let places: Vec<usize> = chosen.among(columns).collect();
    let mut all = vec![0; places.len().saturating_mul(column)];
    all.par_chunks_mut(column.max(1)).zip(places).for_each(|(out, place)| {
        let at = place.saturating_mul(size);
        let numbers = rows.clone().filter_map(|row| row.get(at..)?.get(..size));
        for (out, number) in out.chunks_exact_mut(size).zip(numbers) {
            out.copy_from_slice(number);
        }
    });
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_taken_one_behind_the_other() {
        // Two rows of four numbers of two bytes.
        let bytes: Vec<u8> = (0..16).collect();
        let of = |chosen| transposed(&bytes, 4, 2, chosen);
        assert_eq!(of(Outputs::Even), [0, 1, 8, 9, 4, 5, 12, 13]);
        assert_eq!(of(Outputs::Odd), [2, 3, 10, 11, 6, 7, 14, 15]);
        assert_eq!(of(Outputs::First), [0, 1, 8, 9, 2, 3, 10, 11]);
        assert_eq!(of(Outputs::Second), [4, 5, 12, 13, 6, 7, 14, 15]);
        assert_eq!(of(Outputs::All), [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]);
        assert!(transposed(&[], 0, 2, Outputs::Odd).is_empty());
    }
}
