//! The next token of each row.

use burn::tensor::Tensor;

use briquette_ops::{all_finite, most_likely};

use crate::{Error, GenerateOptions, Result, generate::sample::Sampler};

/// Chooses tokens by logits: the most likely ones on the device, of which one number per row is
/// read, others on the host.
#[derive(Clone, Debug)]
pub(crate) struct Chooser {
    /// One per prompt, whose rows may leave the batch.
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
        let samplers = (0..).zip(prompts).map(sampler).collect::<Result<Vec<_>>>()?;
        let GenerateOptions { lookup, temperature, .. } = *options;
        let refuse =
            |found, must_be| Err(Error::InvalidOption { option: "lookup", found, must_be });
        if lookup > 0 && prompts.len() > 1 {
            let found = format!("{lookup} for {} prompts", prompts.len());
            return refuse(found, "0 for more than one: generate them one by one, or set it to 0");
        }
        if lookup > 0 && temperature > 0.0 {
            let found = format!("{lookup} at a temperature of {temperature}");
            return refuse(found, "0 where tokens are drawn: set one of the two to 0");
        }
        Ok(Self {
            samplers,
            vocab_size,
            is_greedy: temperature == 0.0 && options.repetition_penalty == 1.0,
        })
    }

    /// The next token of each of these `rows` of the prompts, for logits `[rows, vocab_size]`; of a
    /// row that `rests` any.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a row whose logits have NaN or +∞, or none that is finite; an error
    /// of the device.
    pub(crate) fn choose(
        &mut self,
        logits: Tensor<2>,
        rows: &[usize],
        rests: impl Fn(usize) -> bool,
    ) -> Result<Vec<u32>> {
        if self.is_greedy {
            let chosen = best_of_finite(logits.clone())?.into_iter().zip(rows);
            let token = |(token, &row): (Option<u32>, _)| token.or(rests(row).then_some(0));
            if let Some(tokens) = chosen.map(token).collect() {
                return Ok(tokens);
            }
        }
        let host = logits.try_into_vec_as::<f32>()?;
        let token = |(&row, logits): (&usize, &[f32])| match rests(row) {
            true => Ok(0),
            false => self.samplers[row].choose(logits).ok_or(Error::NotFinite { row }),
        };
        rows.iter().zip(host.chunks_exact(self.vocab_size)).map(token).collect()
    }

    /// The tokens of the first row behind its last one and each of a `draft`, up to the first that
    /// is not the next of the draft, for logits `[1 + draft, vocab_size]`.
    ///
    /// # Errors
    /// As [`choose`](Self::choose), for the first token. Before a later one the tokens end.
    pub(crate) fn choose_behind(&mut self, logits: Tensor<2>, draft: &[u32]) -> Result<Vec<u32>> {
        if self.is_greedy
            && let Some(mut chosen) =
                best_of_finite(logits.clone())?.into_iter().collect::<Option<Vec<u32>>>()
        {
            let right = chosen.iter().zip(draft).take_while(|(token, next)| token == next).count();
            chosen.truncate(right + 1);
            return Ok(chosen);
        }
        let host = logits.try_into_vec_as::<f32>()?;
        let mut chosen = Vec::new();
        for logits in host.chunks_exact(self.vocab_size) {
            let token = self.samplers.first_mut().and_then(|sampler| sampler.choose(logits));
            chosen.extend(token);
            if token.is_none() || token.as_ref() != draft.get(chosen.len() - 1) {
                break;
            }
        }
        if chosen.is_empty() { Err(Error::NotFinite { row: 0 }) } else { Ok(chosen) }
    }
}

/// The most likely token of each row, for logits `[rows, vocab_size]`. `None` where some are not
/// finite, which may be wrong or not: the host looks at them.
fn best_of_finite(logits: Tensor<2>) -> Result<Vec<Option<u32>>> {
    let known = all_finite(logits.clone());
    let best = most_likely(logits).mask_fill(known.bool_not(), -1).try_into_vec_as::<i64>()?;
    Ok(best.into_iter().map(|token| u32::try_from(token).ok()).collect())
}
