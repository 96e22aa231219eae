use serde::Serialize;

use crate::{
    record::{CacheBytes, Outcome, Record},
    stats::Mean,
};

/// Kind of an averaged number. A sample is one number: the mean over its answers, tokens or layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The score of answers, in 0..=1.
    Score,
    /// The share of right tokens, each at its place, of answers that have one right text.
    RightTokens,
    /// The loss of tokens, in nats.
    Nats,
    /// KL(full ‖ compressed) of next-token distributions, in nats.
    Kl,
    /// The share of tokens whose most likely next token is that of the full cache.
    Agreement,
    /// The output error of a layer (CompressKV, Eq. 8).
    OutputError,
    /// The share of the kept tokens that an oracle keeps too, of heads that drop any.
    Overlap,
}

/// A result, reduced to what is averaged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Numbers {
        /// The one that policies are compared by.
        first: (Measure, f64),
        /// Those beside it.
        beside: Vec<(Measure, f64)>,
        held: CacheBytes,
        seconds: f64,
    },
    Unavailable {
        reason: String,
    },
}

impl Found {
    pub(super) fn of(record: &Record) -> Self {
        let mean = |numbers: Vec<f64>| Mean::of(&numbers).mean;
        let wide = |numbers: &[f32]| mean(numbers.iter().copied().map(f64::from).collect());
        let some = |measure: Measure, numbers: Vec<f64>| {
            (!numbers.is_empty()).then(|| (measure, mean(numbers)))
        };
        let (first, beside, held) = match &record.outcome {
            Outcome::Answers { answers, cache, .. } => {
                let score = mean(answers.iter().map(|answer| answer.score).collect());
                let right = answers.iter().filter_map(|answer| answer.right_tokens).collect();
                ((Measure::Score, score), vec![some(Measure::RightTokens, right)], *cache)
            }
            Outcome::Text { nats, cache, .. } => ((Measure::Nats, wide(nats)), Vec::new(), *cache),
            Outcome::Fidelity { output_error, kl, agreement, overlap, cache, .. } => {
                let beside = vec![
                    Some((Measure::Agreement, *agreement)),
                    some(Measure::OutputError, output_error.clone()),
                    some(Measure::Overlap, overlap.iter().flatten().copied().collect()),
                ];
                ((Measure::Kl, wide(kl)), beside, *cache)
            }
            Outcome::Unavailable { reason } => {
                return Self::Unavailable { reason: reason.clone() };
            }
        };
        let beside = beside.into_iter().flatten().collect();
        Self::Numbers { first, beside, held, seconds: record.seconds }
    }
}
