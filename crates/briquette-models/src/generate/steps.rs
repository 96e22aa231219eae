//! The decode steps of a generation: recorded and replayed where the device has graphs.

use briquette::KvCache;
use burn::tensor::{Int, Tensor};

#[cfg(feature = "graph")]
use briquette_graph::{StepGraph, may_record};

#[cfg(feature = "graph")]
use crate::Error;
use crate::{GenerateOptions, Model, Result, Timing};

/// Fewer new tokens are decoded before a recording pays: the first four steps are launched.
#[cfg(feature = "graph")]
const WORTH_RECORDING: usize = 16;

/// Gives tokens to a model, one per row.
pub(crate) enum Steps<'a> {
    /// Every step is launched.
    Launched { model: &'a Model, cache: &'a mut KvCache },
    /// Steps are recorded as soon as they are all alike.
    #[cfg(feature = "graph")]
    Recorded { model: &'a Model, steps: Box<StepGraph<'a, Forward<'a>>> },
}

#[cfg(feature = "graph")]
type Forward<'a> = Box<dyn FnMut(Tensor<2, Int>, &mut KvCache) -> Result<Tensor<2>> + Send + 'a>;

impl<'a> Steps<'a> {
    /// Steps of so many rows from the cache on, `left` at most.
    #[cfg_attr(not(feature = "graph"), expect(unused_variables))]
    pub(crate) fn new(
        model: &'a Model,
        cache: &'a mut KvCache,
        rows: usize,
        left: usize,
        options: &GenerateOptions,
    ) -> Self {
        #[cfg(feature = "graph")]
        if options.record && left >= WORTH_RECORDING && may_record(cache.device()) {
            let forward: Forward<'a> =
                Box::new(|tokens, cache| model.forward_last_of_known(tokens, cache));
            // Each step is told its tokens.
            let tokens = Tensor::zeros([rows, 1], cache.device());
            let steps = StepGraph::new(cache, tokens, forward).expecting(left);
            return Self::Recorded { model, steps: Box::new(steps) };
        }
        Self::Launched { model, cache }
    }

    /// The logits after these tokens, `[rows, 1]`, which are in the vocabulary:
    /// `[rows, vocab_size]`.
    ///
    /// # Errors
    /// As [`Model::forward_last_of_known`]; [`Error::Execution`](crate::Error::Execution).
    pub(crate) fn next(&mut self, tokens: Tensor<2, Int>) -> Result<Tensor<2>> {
        match self {
            Self::Launched { model, cache } => model.last_logits(model.decode(tokens, cache)?),
            #[cfg(feature = "graph")]
            Self::Recorded { model, steps } => {
                model.check_not_interrupted()?;
                steps.set_tokens(tokens)?;
                steps.step()?;
                steps.logits().ok_or_else(|| Error::Execution("a step left no logits".to_owned()))
            }
        }
    }

    /// Whether so many rows that have `ended` are better given up. What is recorded is recorded
    /// anew then, which half of the rows are worth.
    #[cfg_attr(not(feature = "graph"), expect(unused_variables))]
    pub(crate) fn may_lose(&self, ended: usize, rows: usize) -> bool {
        match self {
            Self::Launched { .. } => ended > 0,
            #[cfg(feature = "graph")]
            Self::Recorded { .. } => 2 * ended >= rows,
        }
    }

    /// Counts the steps that were replayed, and says why others were launched that might have been.
    #[cfg_attr(not(feature = "graph"), expect(unused_variables))]
    pub(crate) fn count(&self, timing: &mut Timing) {
        match self {
            Self::Launched { .. } => {}
            #[cfg(feature = "graph")]
            Self::Recorded { steps, .. } => {
                timing.replayed += steps.replayed();
                let reason = steps.fallback_reason().map(str::to_owned);
                timing.fallback_reason = reason.or(timing.fallback_reason.take());
            }
        }
    }
}
