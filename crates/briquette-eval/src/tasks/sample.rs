//! Samples, which every task makes: a context, and questions about it with known answers.

use std::{collections::BTreeMap, fmt::Debug};

use briquette_models::Tokenizer;

use crate::{
    Result,
    metrics::{Metric, Metrics},
};

/// The most samples of a cell: their list is held as a whole.
pub const MOST_SAMPLES: usize = 1_000_000;

/// Makes samples.
pub trait Task: Debug + Send + Sync {
    /// The samples, in tokens of this tokenizer. The same seed gives the same samples.
    ///
    /// # Errors
    /// Errors of the task: lengths that hold nothing, files that cannot be read.
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>>;

    /// The most tokens that a sample is to have, where that is known before any is made.
    fn longest(&self) -> Option<usize> {
        None
    }

    /// Samples, and messages about those left out, which are to be shown beside results.
    ///
    /// # Errors
    /// As [`samples`](Self::samples).
    fn load(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        Ok(Samples { samples: self.samples(tokenizer, seed)?, skipped: Vec::new() })
    }
}

/// The samples of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The samples.
    pub samples: Vec<Sample>,
    /// Messages about damaged records that were left out, each with the file, the line and the
    /// defect. Empty unless the task was told to skip damaged records.
    pub skipped: Vec<String>,
}

/// A context, and questions about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Distinguishes the samples of a task with one seed.
    pub id: String,
    /// Parameters of the sample, as `length` or `depth`: the axes of plots.
    pub axes: BTreeMap<String, u64>,
    /// Tokens before the first question, opened by the token that begins a text. A cache compresses
    /// them alone when the question comes after.
    pub context: Vec<u32>,
    /// Questions, each asked behind those before and their answers. At least one.
    pub turns: Vec<Turn>,
}

/// A question with its answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Tokens behind the context, or behind the answer of the turn before.
    pub question: Vec<u32>,
    /// Right answers. What several mean, the metric says.
    pub references: Vec<String>,
    /// The labels to choose from, for metrics of classification.
    pub classes: Vec<String>,
    /// How the answer is scored.
    pub metrics: Metrics,
    /// The one right answer in tokens, where it has one: gives the share of right tokens.
    pub tokens: Option<Vec<u32>>,
    /// Tokens generated at most.
    pub max_new_tokens: usize,
    /// Texts at which an answer ends, as `"\n"`: it is cut before the first.
    pub stop: Vec<String>,
}

impl Turn {
    /// A question whose answer may be any text of so many tokens.
    pub(crate) fn new(
        question: Vec<u32>,
        references: Vec<String>,
        metric: Metric,
        max_new_tokens: usize,
    ) -> Self {
        let (metrics, classes, stop) = (metric.into(), Vec::new(), Vec::new());
        Self { question, references, classes, metrics, tokens: None, max_new_tokens, stop }
    }
}

impl Sample {
    /// Tokens of the context, the questions, and the longest answers.
    pub fn tokens(&self) -> usize {
        let turn = |turn: &Turn| turn.question.len() + turn.max_new_tokens;
        self.context.len() + self.turns.iter().map(turn).sum::<usize>()
    }
}
