//! The next token of each row.

use burn::tensor::Tensor;

use briquette_ops::{all_finite, most_likely};

use crate::{Error, GenerateOptions, Result, generate::sample::Sampler};

/// Chooses tokens by logits: the most likely ones on the device, of which a number a row is read,
/// others on the host.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// One a row.
    samplers: Vec<Sampler>,
    vocab_size: usize,
    is_greedy: bool,
}

impl Chooser {
    /// Makes one row per prompt.
    ///
    /// # Errors
    /// [`Error::InvalidOption`].
    pub(crate) fn new<P: AsRef<[u32]>>(
        options: &GenerateOptions,
        prompts: &[P],
        vocab_size: usize,
    ) -> Result<Self> {
        let sampler = |(row, prompt): (u64, &P)| Sampler::new(options, prompt.as_ref(), row);
        Ok(Self {
            samplers: (0..).zip(prompts).map(sampler).collect::<Result<Vec<_>>>()?,
            vocab_size,
            is_greedy: options.temperature == 0.0 && options.repetition_penalty == 1.0,
        })
    }

    /// The next token of each row, for logits `[rows, vocab_size]`; of a row that `rests` any.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a row whose logits have NaN or +∞, or none that is finite; an error
    /// of the device.
    pub(crate) fn choose(
        &mut self,
        logits: Tensor<2>,
        rests: impl Fn(usize) -> bool,
    ) -> Result<Vec<u32>> {
        if self.is_greedy {
            // What is not finite may be wrong or not: the host looks at it.
            let known = all_finite(logits.clone());
            let chosen = most_likely(logits.clone()).mask_fill(known.bool_not(), -1);
            let chosen = chosen.try_into_vec_as::<i64>()?;
            let token = |(row, token): (usize, &i64)| match u32::try_from(*token) {
                Err(_) if rests(row) => Some(0),
                token => token.ok(),
            };
            if let Some(tokens) = chosen.iter().enumerate().map(token).collect() {
                return Ok(tokens);
            }
        }
        let host = logits.try_into_vec_as::<f32>()?;
        let rows = self.samplers.iter_mut().zip(host.chunks_exact(self.vocab_size));
        let token = |(row, (sampler, logits)): (usize, (&mut Sampler, &[f32]))| match rests(row) {
            true => Ok(0),
            false => sampler.choose(logits).ok_or(Error::NotFinite { row }),
        };
        rows.enumerate().map(token).collect()
    }
}
