use serde::Serialize;

use crate::{
    record::{CacheBytes, Outcome, Record},
    stats::Mean,
};

/// Kind of the averaged number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The score of answers, in 0..=1. The answers of a sample are one number, their mean.
    Score,
    /// The loss of tokens, in nats. A window is one number.
    Nats,
    /// KL(full ‖ compressed) of next-token distributions, in nats. A window is one number.
    Kl,
}

/// A result, reduced to what is averaged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Number { measure: Measure, value: f64, held: CacheBytes, seconds: f64 },
    Unavailable { reason: String },
}

impl Found {
    pub(super) fn of(record: &Record) -> Self {
        let mean = |numbers: Vec<f64>| Mean::of(&numbers).mean;
        let nats = |nats: &[f32]| mean(nats.iter().map(|nats| f64::from(*nats)).collect());
        let (measure, value, held) = match &record.outcome {
            Outcome::Answers { answers, cache, .. } => {
                (Measure::Score, mean(answers.iter().map(|answer| answer.score).collect()), *cache)
            }
            Outcome::Text { nats: losses, cache, .. } => (Measure::Nats, nats(losses), *cache),
            Outcome::Fidelity { kl, cache, .. } => (Measure::Kl, nats(kl), *cache),
            Outcome::Unavailable { reason } => {
                return Self::Unavailable { reason: reason.clone() };
            }
        };
        Self::Number { measure, value, held, seconds: record.seconds }
    }
}
