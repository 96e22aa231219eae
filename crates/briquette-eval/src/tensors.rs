//! Tokens and numbers on their way to a device and back.

use briquette_models::{Error as ModelError, Model};
use burn::tensor::{Int, Tensor, TensorData};

use crate::Result;

/// `[1, tokens]`
pub(crate) fn row(tokens: &[u32], model: &Model) -> Tensor<2, Int> {
    let data = TensorData::new(tokens.to_vec(), [1, tokens.len()]);
    Tensor::from_data(data, &model.device())
}

/// The numbers of a tensor, row after row.
pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    Ok(tensor.try_into_vec_as::<f32>().map_err(briquette::Error::from)?)
}

/// The same of logits and losses, which give no probabilities unless all are finite.
pub(crate) fn finite_numbers<const D: usize>(tensor: Tensor<D>) -> Result<Vec<f32>> {
    let numbers = numbers(tensor)?;
    match numbers.iter().all(|number| number.is_finite()) {
        true => Ok(numbers),
        false => Err(ModelError::NotFinite { row: 0 }.into()),
    }
}
