use serde::Serialize;

use crate::{
    metrics::Metric,
    record::{Answer, CacheBytes, Outcome, Record, scores_beside},
    stats::Mean,
};

/// Kind of an averaged number. A sample is one number: the mean over its answers, tokens or layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The score of answers, by the first metric of their task.
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
    /// The score of answers by another metric of their task.
    #[serde(untagged)]
    By(Metric),
}

/// A result, reduced to what is averaged.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Found {
    Numbers(Numbers),
    Unavailable { reason: String },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Numbers {
    /// The one that policies are compared by.
    pub(super) first: (Measure, f64),
    /// Those beside it.
    pub(super) beside: Vec<(Measure, f64)>,
    /// The metric of a score; `None` of other numbers, and where turns have different ones.
    pub(super) metric: Option<Metric>,
    /// The lowest that a score can be.
    pub(super) lowest: f64,
    pub(super) held: CacheBytes,
    pub(super) seconds: f64,
    pub(super) span: Option<[f64; 2]>,
}

impl Found {
    pub(super) fn of(record: &Record) -> Self {
        let mean = |numbers: Vec<f64>| Mean::of(&numbers).mean;
        let wide = |numbers: &[f32]| mean(numbers.iter().copied().map(f64::from).collect());
        let some = |measure: Measure, numbers: Vec<f64>| {
            (!numbers.is_empty()).then(|| (measure, mean(numbers)))
        };
        let (mut metric, mut lowest) = (None, 0.0);
        let (first, beside, held) = match &record.outcome {
            Outcome::Answers { answers, cache, .. } => {
                let score = mean(answers.iter().map(|answer| answer.score).collect());
                let right = answers.iter().filter_map(|answer| answer.right_tokens).collect();
                metric = metric_of(answers);
                lowest = answers.iter().map(Answer::lowest).fold(lowest, f64::min);
                let by = scores_beside(answers).into_iter();
                let by = by.map(|(metric, scores)| some(Measure::By(metric), scores));
                let beside = [some(Measure::RightTokens, right)].into_iter().chain(by).collect();
                ((Measure::Score, score), beside, *cache)
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
        let (seconds, span) = (record.seconds, record.span());
        Self::Numbers(Numbers { first, beside, metric, lowest, held, seconds, span })
    }
}

/// The metric of the scores of a sample, if its turns have one.
fn metric_of(answers: &[Answer]) -> Option<Metric> {
    let metric = answers.first()?.metric;
    answers.iter().all(|answer| answer.metric == metric).then_some(metric)
}
