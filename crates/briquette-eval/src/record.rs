//! One line of a run's results.

use std::{collections::BTreeMap, fmt};

use briquette::KvCache;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Result,
    metrics::{Metric, Metrics},
    tasks::{Question, Turn},
};

/// The result of one policy on one sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which of the units of a run it is.
    #[serde(flatten)]
    pub key: Key,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Seconds it takes by itself: of a batch the sample's part; of a prefill that policies shared
    /// what was common to all, and the policy's own.
    pub seconds: f64,
    /// When the batch and the prefill it was measured in began, in seconds since the beginning of
    /// 1970, UTC; `None` where nothing was run, and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_seconds: Option<f64>,
    /// When it ended, in seconds since the beginning of 1970, UTC; `None` where nothing was run,
    /// and in results of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_seconds: Option<f64>,
}

impl Record {
    /// When its measurement began and ended, as [`wall_seconds`](crate::wall_seconds) takes it;
    /// `None` where it does not say when it ended. Without a begin, it is that many seconds before.
    pub fn span(&self) -> Option<[f64; 2]> {
        let end = self.ended_seconds?;
        Some([self.began_seconds.unwrap_or(end - self.seconds), end])
    }
}

/// A unit of a run: what is lost when it is killed, and what a resumed run skips.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The label of the model.
    pub model: String,
    /// The label of the policy.
    pub policy: String,
    /// Its budget as text, `-` for a policy without one.
    pub budget: String,
    /// The seed.
    pub seed: u64,
    /// The label of the task.
    pub task: String,
    /// Which of its samples.
    pub sample: String,
    /// When the question came; `None` for what asks nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Question>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, policy, budget, task, sample, .. } = self;
        write!(f, "{model}, {policy} at {budget}, {task}, {sample}")
    }
}

/// The result of a unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Outcome {
    /// Answers to questions.
    Answers {
        /// Parameters of the sample, as `length` or `depth`.
        axes: BTreeMap<String, u64>,
        /// One answer per turn.
        answers: Vec<Answer>,
        /// The cache after the last.
        cache: CacheBytes,
        /// Seconds from the start of the context to the first token of the first answer; `None` in
        /// results of older versions where policies shared the prefill.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefill_seconds: Option<f64>,
        /// Seconds of all decode steps, and how many they were.
        decode_seconds: f64,
        /// Tokens decoded in them.
        decoded_tokens: usize,
    },
    /// A continued text.
    Text {
        /// Tokens fed at once, before any was scored.
        prompt: usize,
        /// −ln of the probability of each token, in order.
        nats: Vec<f32>,
        /// The cache at the end.
        cache: CacheBytes,
    },
    /// How far the model on this cache is from itself on the full one.
    Fidelity {
        /// ‖full − compressed‖ / ‖full‖ of each layer's attention output over the continued tokens
        /// (CompressKV, Eq. 8).
        output_error: Vec<f64>,
        /// KL(full ‖ compressed) of the next-token distributions, in nats, one a continued token.
        kl: Vec<f32>,
        /// The share of the continued tokens whose most likely next token is the same.
        agreement: f64,
        /// The share of the tokens kept that an oracle keeps too, which sees the attention of the
        /// continued tokens: `[layer][kv_head]`. Empty where nothing is dropped.
        overlap: Vec<Vec<f64>>,
        /// The tokens of the prompt that the cache kept.
        kept: KeptTokens,
        /// The cache at the end.
        cache: CacheBytes,
    },
    /// The policy cannot hold at this budget, or lacks something.
    Unavailable {
        /// Why it cannot be measured.
        reason: String,
    },
}

impl Outcome {
    /// Names a number in it that is not finite, if any: JSON has no such numbers, so the line could
    /// not be read again.
    pub(crate) fn not_finite(&self) -> Option<&'static str> {
        match self {
            Self::Answers { .. } | Self::Unavailable { .. } => None,
            Self::Text { nats, .. } => {
                (!nats.iter().all(|nats| nats.is_finite())).then_some("the loss of a token")
            }
            Self::Fidelity { output_error, kl, agreement, overlap, .. } => {
                let overlap = overlap.iter().flatten();
                not_finite(kl, output_error.iter().chain(overlap).chain([agreement]))
            }
        }
    }
}

/// Names a number of a comparison with the full cache that is not finite, if any.
pub(crate) fn not_finite<'a>(
    kl: &[f32],
    mut errors: impl Iterator<Item = &'a f64>,
) -> Option<&'static str> {
    if !kl.iter().all(|kl| kl.is_finite()) {
        return Some("the divergence of a next-token distribution");
    }
    (!errors.all(|error| error.is_finite())).then_some("the error of an attention output")
}

/// An answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The text that the model generated.
    pub said: String,
    /// Right answers.
    pub references: Vec<String>,
    /// The labels to choose from, or the false answers, for metrics that read them; none in results
    /// of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// The metric of the score.
    pub metric: Metric,
    /// The score, within the metric's range.
    pub score: f64,
    /// The scores by other metrics.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub beside: BTreeMap<Metric, f64>,
    /// The share of right tokens, each at its place, where there is one right answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right_tokens: Option<f64>,
}

impl Answer {
    /// The answer to a turn, with its scores.
    ///
    /// # Errors
    /// As [`scored_by`](Self::scored_by).
    pub fn new(said: String, turn: &Turn) -> Result<Self> {
        let Turn { references, classes, metrics, .. } = turn;
        let answer = Self {
            said,
            references: references.clone(),
            classes: classes.clone(),
            metric: metrics.first(),
            score: 0.0,
            beside: BTreeMap::new(),
            right_tokens: None,
        };
        answer.scored_by(metrics)
    }

    /// The same answer with its scores by these metrics.
    ///
    /// # Errors
    /// [`Error::NoClasses`] for a metric that reads classes where there are none, and
    /// [`Error::Setting`] for one that gives no number.
    pub fn scored_by(self, metrics: &Metrics) -> Result<Self> {
        if let Some(metric) = metrics.without_classes(&self.classes) {
            return Err(Error::NoClasses { metric: metric.name() });
        }
        let score = |metric: Metric| {
            let score = metric.score(&self.said, &self.references, &self.classes);
            if score.is_finite() {
                return Ok(score);
            }
            let reason = format!("`{}` gives no number for {:?}", metric.name(), self.said);
            Err(Error::Setting { name: "metric", reason })
        };
        let beside = metrics.beside().map(|metric| Ok((metric, score(metric)?)));
        let (first, beside) = (score(metrics.first())?, beside.collect::<Result<_>>()?);
        Ok(Self { metric: metrics.first(), score: first, beside, ..self })
    }

    /// The lowest score that its metric gives.
    pub fn lowest(&self) -> f64 {
        *self.metric.range().start()
    }

    /// The metrics it was scored by.
    pub fn metrics(&self) -> Metrics {
        Metrics::with(self.metric, self.beside.keys().copied())
    }
}

/// Scores beside the first, of the turns that have them.
pub fn scores_beside(answers: &[Answer]) -> BTreeMap<Metric, Vec<f64>> {
    let mut scores: BTreeMap<Metric, Vec<f64>> = BTreeMap::new();
    for (metric, score) in answers.iter().flat_map(|answer| &answer.beside) {
        scores.entry(*metric).or_default().push(*score);
    }
    scores
}

/// Tokens of a prompt that a cache kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KeptTokens {
    /// The prompt, cut into the texts of its tokens. Joined they are the prompt.
    pub tokens: Vec<String>,
    /// The share of all heads of all layers that hold each token.
    pub share: Vec<f32>,
    /// Tokens each head holds, `[layer][kv_head]`.
    pub heads: Vec<Vec<usize>>,
}

/// Bytes of a cache, of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheBytes {
    /// Bytes of all its buffers, with the room for tokens to come.
    pub bytes: usize,
    /// Free bytes among them, the room for tokens to come; `None` in results of older versions,
    /// which do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spare: Option<usize>,
    /// Bytes the keys and values of all tokens seen would take.
    pub full: usize,
}

impl CacheBytes {
    /// Bytes of a cache, all rows together.
    pub fn of(cache: &KvCache) -> Self {
        Self {
            bytes: cache.bytes_held(),
            spare: Some(cache.bytes_spare()),
            full: cache.bytes_full(),
        }
    }

    /// Bytes without the spare room; with it where that is not told.
    pub fn kept(self) -> usize {
        self.bytes.saturating_sub(self.spare.unwrap_or(0))
    }

    /// Kept bytes over those of the full cache.
    pub fn kept_of_full(self) -> f64 {
        self.kept() as f64 / self.full.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_older_versions_tell_no_spare_room() {
        let old: CacheBytes = serde_json::from_str(r#"{"bytes":3,"full":2}"#).unwrap();
        assert_eq!(old, CacheBytes { bytes: 3, spare: None, full: 2 });
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"bytes":3,"full":2}"#);
        let new = CacheBytes { spare: Some(1), ..old };
        assert_eq!(serde_json::to_string(&new).unwrap(), r#"{"bytes":3,"spare":1,"full":2}"#);
    }

    #[test]
    fn numbers_that_json_does_not_have_are_found() {
        let cache = CacheBytes { bytes: 1, spare: None, full: 1 };
        let text = |nats| Outcome::Text { prompt: 1, nats, cache };
        assert_eq!(text(vec![1.0, 2.0]).not_finite(), None);
        assert_eq!(text(vec![1.0, f32::NAN]).not_finite(), Some("the loss of a token"));
        let near = |output_error, kl, overlap| Outcome::Fidelity {
            output_error,
            kl,
            agreement: 1.0,
            overlap: vec![vec![overlap]],
            kept: KeptTokens::default(),
            cache,
        };
        assert_eq!(near(vec![0.1], vec![0.0], 0.5).not_finite(), None);
        let kl = near(vec![0.1], vec![f32::INFINITY], 0.5).not_finite();
        assert!(kl.is_some_and(|what| what.contains("next-token")));
        for outcome in [near(vec![f64::NAN], vec![0.0], 0.5), near(vec![0.1], vec![0.0], f64::NAN)]
        {
            assert!(outcome.not_finite().is_some_and(|what| what.contains("attention")));
        }
    }
}
