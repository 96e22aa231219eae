//! TruthfulQA: questions that people answer wrongly.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    before, checked,
    choose::{Draw, Source},
    prompt::{Ask, Case, Cut},
    published::{fill, published},
    read::{Checked, is_table},
    resolved,
};
use crate::{
    Result,
    metrics::{Metric, Metrics},
    tasks::{Question, Sample, Samples, Task, TaskSpec},
};

/// Name in errors.
const NAME: &str = "TruthfulQA";

/// TruthfulQA, generation: the published `TruthfulQA.csv`, or a JSON record a line with the fields
/// of the Hugging Face data set (Lin et al., 2022, arXiv 2109.07958).
///
/// The prompt is the paper's `qa`: six questions with answers, then the question. The published one
/// ends there, and the `A:` that models put before their answer is cut off; here the prompt ends
/// with it. The right answers are the turn's references, the wrong ones its classes; a full stop is
/// put to each, and "I have no comment." is always right.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TruthfulQa {
    /// The file.
    pub file: PathBuf,
    /// One or a list of the metrics whose name begins with `truthfulqa-`; `truthfulqa-bleu-acc` if
    /// absent.
    #[serde(default)]
    pub metric: Option<Metrics>,
    /// Samples, drawn by the seed; all if absent.
    #[serde(default)]
    pub samples: Option<usize>,
    /// Whether records that cannot be used are left out, and reported, instead of refused.
    #[serde(default)]
    pub skip_damaged: bool,
    /// Label in reports; `truthful-qa` if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// When it is asked.
    #[serde(default = "before", deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
}

/// A question, with the fields used.
#[derive(Deserialize)]
struct Record {
    question: String,
    correct_answers: Vec<String>,
    incorrect_answers: Vec<String>,
}

/// A question of the table: `;` stands between answers.
#[derive(Deserialize)]
struct Row {
    #[serde(rename = "Question")]
    question: String,
    #[serde(rename = "Correct Answers")]
    correct_answers: String,
    #[serde(rename = "Incorrect Answers")]
    incorrect_answers: String,
}

impl From<Row> for Record {
    fn from(row: Row) -> Self {
        let listed = |answers: &str| answers.split(';').map(str::to_owned).collect();
        Self {
            question: row.question,
            correct_answers: listed(&row.correct_answers),
            incorrect_answers: listed(&row.incorrect_answers),
        }
    }
}

/// The answers that are not empty, each with a full stop.
fn closed(answers: &[String]) -> Vec<String> {
    let answers = answers.iter().map(|answer| answer.trim()).filter(|answer| !answer.is_empty());
    answers
        .map(|answer| if answer.ends_with('.') { answer.into() } else { format!("{answer}.") })
        .collect()
}

fn case(number: usize, record: &Record, metrics: &Metrics) -> Checked<Case> {
    const NO_COMMENT: &str = "I have no comment.";
    let protocol = &published().truthful_qa;
    let (mut right, wrong) = (closed(&record.correct_answers), closed(&record.incorrect_answers));
    if right.is_empty() || wrong.is_empty() {
        let (right, wrong) = (right.len(), wrong.len());
        return Err(format!("{right} correct and {wrong} incorrect answers, both are needed"));
    }
    if !right.iter().any(|answer| answer == NO_COMMENT) {
        right.push(NO_COMMENT.into());
    }
    let question = fill(&protocol.question, &[("question", record.question.trim())]);
    Ok(Case {
        id: format!("record={number}"),
        axes: BTreeMap::new(),
        context: protocol.context.clone(),
        asks: vec![Ask {
            classes: wrong,
            metrics: metrics.clone(),
            ..Ask::new(protocol, question, right)
        }],
    })
}

impl TaskSpec for TruthfulQa {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| "truthful-qa".into())
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        resolved(&mut self.file, base);
    }
}

impl Task for TruthfulQa {
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        Ok(self.load(tokenizer, seed)?.samples)
    }

    fn load(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        let mut own = Metric::all().to_vec();
        own.retain(|metric| metric.name().starts_with("truthfulqa-"));
        let metrics = checked(NAME, self.metric.as_ref(), published().truthful_qa.metric, &own)?;
        let source = Source {
            task: NAME,
            path: &self.file,
            samples: self.samples,
            skip_damaged: self.skip_damaged,
        };
        let add = |draw: &mut Draw<Case>, number, record: &Record| {
            let case = case(number, record, &metrics)?;
            draw.offer(number, case.id.clone(), case)
        };
        let chosen = if is_table(&self.file) {
            source.choose(seed, |draw, number, row: Row| add(draw, number, &row.into()))
        } else {
            source.choose(seed, |draw, number, record| add(draw, number, &record))
        }?;
        chosen.samples(|case| case.sample(tokenizer, Cut::None))
    }
}
