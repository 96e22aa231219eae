//! How well a model continues a text on a compressed cache.
//!
//! A window of the text is given to the model as a prompt, and the cache is compressed as its
//! policy says. The tokens behind it are then fed one by one, each of them right; the loss of a
//! token is −ln of the probability it was given. The first token behind the prompt is fed but not
//! scored: it is predicted before anything was compressed.

use briquette::Policy;
use briquette_models::{Error as ModelError, Instruction, Model, prefill, reconstruct};
use burn::tensor::{DType, Int, Tensor, TensorData, activation::log_softmax};

use crate::{Result, record::CacheBytes};

/// The losses of the tokens of a window behind its first `prompt` ones and the next, in nats, and
/// the cache at the end.
///
/// # Errors
/// Failures of the model or of the cache; [`ModelError::NotFinite`] for logits that give no
/// probabilities.
pub(crate) fn loss(
    model: &Model,
    policy: &Policy,
    window: &[u32],
    prompt: usize,
) -> Result<(Vec<f32>, CacheBytes)> {
    let (prompt, behind) = window.split_at(prompt.min(window.len()));
    let mut cache = model.cache(policy.clone())?;
    prefill(model, &[prompt], &mut cache, None)?;
    reconstruct(model, &[prompt], &mut cache, &Instruction::default())?;
    let device = model.device();
    let token = |id: u32| -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(vec![id], [1, 1]), &device)
    };
    let mut losses = Vec::with_capacity(behind.len());
    for pair in behind.windows(2) {
        let logits = model.forward_last(token(pair[0]), &mut cache)?;
        losses.push(log_softmax(logits.cast(DType::F32), 1).gather(1, token(pair[1])));
    }
    let nats = if losses.is_empty() {
        Vec::new()
    } else {
        let read = Tensor::cat(losses, 0).neg().try_into_vec_as::<f32>();
        read.map_err(briquette::Error::from)?
    };
    if nats.iter().any(|nats| !nats.is_finite()) {
        return Err(ModelError::NotFinite { row: 0 }.into());
    }
    Ok((nats, CacheBytes::of(&cache)))
}
