//! How well a model continues a text on a compressed cache.
//!
//! A window of the text is given to the model as a prompt, and the cache is compressed as its
//! policy says. The tokens behind it are then fed one by one, each of them right; the loss of a
//! token is −ln of the probability it was given. The first token behind the prompt is fed but not
//! scored: it is predicted before anything was compressed.

use briquette::Policy;
use briquette_models::{Error as ModelError, Instruction, Model, prefill, reconstruct};
use burn::tensor::{DType, Int, Tensor, TensorData, activation::log_softmax};
use serde::{Deserialize, Serialize};

use crate::{
    Result,
    cache_bytes::CacheBytes,
    fingerprint,
    grid::Entry,
    jobs,
    journal::Steps,
    tasks::text::{Text, Window, check_windows},
};

/// Sizes of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens predicted behind it.
    pub tokens: usize,
    /// Windows of the text.
    pub windows: usize,
    /// Tokens from the start of one to the start of the next; `None` spreads them over the text.
    pub stride: Option<usize>,
}

/// The losses of one window under one policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// In nats, one for each predicted token. In f32, which JSON gives back exactly.
    pub nats: Vec<f32>,
    /// Bytes of cache held at the end, with the room for tokens to come.
    pub bytes_held: usize,
    /// Those of them that are free; `None` in journals of older versions, which do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_spare: Option<usize>,
    /// Bytes that a full cache would hold then.
    pub bytes_full: usize,
}

impl Loss {
    /// The mean over the tokens.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.nats.iter().map(|nats| f64::from(*nats)).sum();
        sum / self.nats.len().max(1) as f64
    }
}

impl Plan {
    /// The windows of a text: the prompt, the token fed first, and the tokens predicted.
    ///
    /// # Errors
    /// [`Error::Grid`](crate::Error::Grid) for a number that is 0,
    /// [`Error::ContextTooShort`](crate::Error::ContextTooShort), and what [`Text::windows`]
    /// refuses.
    pub fn windows(&self, text: &Text, model: &Model) -> Result<Vec<Window>> {
        let counts = [("prompt", self.prompt), ("tokens", self.tokens), ("windows", self.windows)];
        let length = self.prompt.saturating_add(self.tokens).saturating_add(1);
        check_windows(&counts, length, model.config().max_position_embeddings)?;
        text.windows(length, self.windows, self.stride)
    }
}

/// Losses by the fingerprint of the policy and the start of the window.
pub type Losses = Steps<(String, usize), Loss>;

/// The losses of every entry in every window, `[entry][window]`, those that are not in `losses` yet
/// being measured. `on_window` hears of each.
///
/// # Errors
/// Failures of the model or of a cache, and of the journal.
pub fn run(
    model: &Model,
    entries: &[Entry],
    windows: &[Window],
    prompt: usize,
    threads: usize,
    losses: &mut Losses,
    mut on_window: impl FnMut(&Entry),
) -> Result<Vec<Vec<Loss>>> {
    let key = |entry: usize, window: usize| {
        (fingerprint::of_policy(&entries[entry].policy), windows[window].start)
    };
    let steps: Vec<(usize, usize)> = (0..entries.len())
        .flat_map(|entry| (0..windows.len()).map(move |window| (entry, window)))
        .collect();
    let (found, todo): (Vec<_>, Vec<_>) =
        steps.into_iter().partition(|&(entry, window)| losses.get(&key(entry, window)).is_some());
    found.iter().for_each(|(entry, _)| on_window(&entries[*entry]));
    let work = |&(entry, window): &(usize, usize)| {
        loss(model, &entries[entry].policy, &windows[window].tokens, prompt)
    };
    jobs::run(&todo, threads, work, |&(entry, window), loss| {
        losses.push(key(entry, window), loss)?;
        on_window(&entries[entry]);
        Ok(())
    })?;
    losses.finish()?;
    let of_entry = |entry| {
        (0..windows.len()).filter_map(|window| losses.get(&key(entry, window)).cloned()).collect()
    };
    Ok((0..entries.len()).map(of_entry).collect())
}

/// The losses of the tokens of a window behind its first `prompt` ones and the next.
///
/// # Errors
/// Failures of the model or of the cache; [`ModelError::NotFinite`] for logits that give no
/// probabilities.
pub fn loss(model: &Model, policy: &Policy, window: &[u32], prompt: usize) -> Result<Loss> {
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
    let CacheBytes { bytes, spare, full } = CacheBytes::of(&cache);
    Ok(Loss { nats, bytes_held: bytes, bytes_spare: spare, bytes_full: full })
}
