use std::{io, sync::Arc};

use burn_store::burn_pack::{Bytes, Error as PackError, Tensor};

use crate::{
    Error, ModelConfig, Result,
    checkpoint::{mxfp4::Mxfp4, tensors::Stored, weights::Weights},
};

/// A tensor that holds a matrix of every expert of a layer, and the projections whose outputs the
/// matrices have: `[experts, inputs, outputs]`, and `[experts, outputs]` for their biases, whose
/// name ends with `_bias`. Matrices in [`Mxfp4`] lie in two tensors, whose names end with `_blocks`
/// and `_scales`.
pub(crate) struct Stacked {
    /// Its name, beside the numbers that experts of their own would have.
    pub(crate) name: &'static str,
    pub(crate) projections: &'static [(&'static str, Outputs)],
}

/// Outputs of a matrix that belong to one projection.
#[derive(Clone, Copy)]
pub(crate) enum Outputs {
    All,
    /// The first of each pair.
    Even,
    /// The second of each pair.
    Odd,
}

impl Outputs {
    /// Their places among so many.
    pub(super) fn among(self, outputs: usize) -> impl ExactSizeIterator<Item = usize> {
        let (first, step) = match self {
            Self::All => (0, 1),
            Self::Even => (0, 2),
            Self::Odd => (1, 2),
        };
        (first..outputs).step_by(step)
    }
}

/// Shows what a checkpoint holds of all experts of a layer in one tensor as the tensors of each.
///
/// # Errors
/// [`Error::LoadTensor`] for a tensor that is not that of the experts of the configuration.
pub(crate) fn unstack(weights: &mut Weights, config: &ModelConfig) -> Result<()> {
    let Some(experts) = config.experts.as_ref().map(|experts| experts.experts) else {
        return Ok(());
    };
    for layer in 0..config.num_hidden_layers {
        let named = |path: String| {
            let path = format!("model.layers.{layer}.mlp.experts.{path}");
            config.architecture.checkpoint_name(&path)
        };
        for Stacked { name, projections } in config.architecture.stacked() {
            for (ending, parameter) in [("", "weight"), ("_bias", "bias")] {
                let name = named(format!("{name}{ending}"));
                let Some((file, whole)) = weights.remove(&name) else { continue };
                let each = each(&name, &whole, experts)?;
                for (projection, outputs) in *projections {
                    for expert in 0..experts {
                        let name = named(format!("{expert}.{projection}.{parameter}"));
                        let part = each.part(name.clone(), expert, *outputs);
                        weights.insert(file, name, part.into());
                    }
                }
            }
            let [blocks, scales] = ["_blocks", "_scales"].map(|end| named(format!("{name}{end}")));
            let Some((file, stored)) = weights.remove(&blocks) else { continue };
            let Some((_, of_scales)) = weights.remove(&scales) else {
                let shape = stored.tensor.shape.iter().take(3).copied().collect();
                return Err(Error::MissingTensor { tensor: scales, shape, count: 1 });
            };
            let shape = stored.tensor.shape.to_vec();
            let Some(all) = Mxfp4::of(stored, of_scales, experts) else {
                return Err(not_of(&blocks, &shape, experts));
            };
            for (projection, outputs) in *projections {
                for expert in 0..experts {
                    let name = named(format!("{expert}.{projection}.weight"));
                    let rows = all.rows(expert, *outputs);
                    let numbers = rows.deferred(name.clone()).into();
                    let quantized =
                        Arc::new(move |name: &str, device: &_| rows.quantized(name, device));
                    weights.insert_quantized(file, name, numbers, quantized);
                }
            }
        }
    }
    Ok(())
}

/// The tensors of equal size that lie one behind the other in a tensor.
struct Each<'a> {
    whole: &'a Stored,
    /// `[inputs, outputs]` or `[outputs]`.
    shape: &'a [usize],
    outputs: usize,
}

fn each<'a>(name: &str, whole: &'a Stored, experts: usize) -> Result<Each<'a>> {
    match whole.tensor.shape.as_slice() {
        [count, shape @ ..] if *count == experts && matches!(shape.len(), 1 | 2) => {
            Ok(Each { whole, shape, outputs: shape.last().copied().unwrap_or(0) })
        }
        shape => Err(not_of(name, shape, experts)),
    }
}

/// The error of a tensor that does not hold something of each expert.
fn not_of(name: &str, shape: &[usize], experts: usize) -> Error {
    let message = format!("its shape {shape:?} is not that of {experts} experts");
    Error::LoadTensor { tensor: name.into(), message }
}

impl Each<'_> {
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
        let read = move || -> io::Result<Vec<u8>> {
            let bytes = whole.bytes(start..start.saturating_add(length))?;
            Ok(transposed(&bytes, outputs, size, chosen))
        };
        let provider = move || match read() {
            Ok(bytes) => Ok(Bytes::from_bytes_vec(bytes)),
            Err(error) => Err(PackError::IoError(error.to_string())),
        };
        Tensor::deferred(name, dtype, shape, None, bytes, provider)
    }
}

/// The chosen columns of a matrix of numbers of `size` bytes, one behind the other.
fn transposed(bytes: &[u8], columns: usize, size: usize, chosen: Outputs) -> Vec<u8> {
    let row = columns.saturating_mul(size).max(1);
    let mut out = Vec::with_capacity(bytes.len());
    for column in chosen.among(columns) {
        let at = column.saturating_mul(size);
        let numbers = bytes.chunks_exact(row).filter_map(|row| row.get(at..)?.get(..size));
        numbers.for_each(|number| out.extend_from_slice(number));
    }
    out
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
        assert_eq!(of(Outputs::All), [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]);
        assert!(transposed(&[], 0, 2, Outputs::Odd).is_empty());
    }
}
