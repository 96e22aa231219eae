//! TruthfulQA: questions that people answer wrongly.

use briquette_models::Tokenizer;
use serde::Deserialize;

use super::{
    checked,
    choose::{Draw, Source},
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut},
    published::{fill, published},
    read::{Checked, is_table},
};
use crate::{
    Result,
    metrics::{Metric, Metrics},
    tasks::Samples,
};

file_task! {
    /// TruthfulQA, generation: the published `TruthfulQA.csv`, or a JSON record a line with the
    /// fields of the Hugging Face data set (Lin et al., 2022, arXiv 2109.07958).
    ///
    /// The prompt is the paper's `qa`: six questions with answers, then the question. The published
    /// one ends there, and the `A:` that models put before their answer is cut off; here the prompt
    /// ends with it. The right answers are the turn's references, the wrong ones its classes; a
    /// full stop is put to each, and "I have no comment." is always right.
    pub struct TruthfulQa {
        /// One or a list of the metrics whose name begins with `truthfulqa-`; `truthfulqa-bleu-acc`
        /// if absent.
        #[serde(default)]
        pub metric: Option<Metrics>,
    }
}

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
    let ask = Ask::new(protocol, question, right);
    let ask = Ask { classes: wrong, metrics: metrics.clone(), ..ask };
    Ok(Case::of_record(number, protocol.context.clone(), ask))
}

impl Benchmark for TruthfulQa {
    const NAME: &'static str = "TruthfulQA";

    fn default_label(&self) -> String {
        "truthful-qa".into()
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        let mut own = Metric::all().to_vec();
        own.retain(|metric| metric.name().starts_with("truthfulqa-"));
        let metrics =
            checked(Self::NAME, self.metric.as_ref(), published().truthful_qa.metric, &own)?;
        let add = |draw: &mut Draw<Case>, number, record: &Record| {
            draw.offer_case(number, case(number, record, &metrics)?)
        };
        let chosen = if is_table(&self.file) {
            source.choose(seed, |draw, number, row: Row| add(draw, number, &row.into()))
        } else {
            source.choose(seed, |draw, number, record| add(draw, number, &record))
        }?;
        chosen.samples(|case| case.sample(tokenizer, Cut::None))
    }
}
