//! Questions of one's own, from any file of records.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    before,
    choose::Source,
    fields::{self, Fields, names},
    prompt::{Ask, Case, Cut, check_length},
    read::Checked,
    resolved,
};
use crate::{
    Error, Result, files,
    metrics::Metrics,
    tasks::{Question, Sample, Samples, Task, TaskSpec},
};

/// Name in errors.
const NAME: &str = "questions";

/// Questions with known answers, a record each: JSON lines, a JSON array, or a table (`.csv`) with
/// a header.
///
/// The prompt is `context` and then `question`, two templates in which `{name}` stands for a field
/// of the record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Questions {
    /// The file.
    pub file: PathBuf,
    /// The prompt up to the end of what a cache compresses when the question comes after.
    #[serde(default = "context")]
    pub context: String,
    /// The rest of the prompt.
    #[serde(default = "question")]
    pub question: String,
    /// The field with the right answers: a text, or a list of them.
    #[serde(default = "answers")]
    pub answers: String,
    /// The field with the labels to choose from, for metrics that read them.
    #[serde(default)]
    pub classes: Option<String>,
    /// How answers are scored: a metric, or a list of them, the first of which is the score.
    pub metric: Metrics,
    /// Tokens of an answer at most.
    #[serde(default = "max_new_tokens")]
    pub max_new_tokens: usize,
    /// Texts at which an answer ends.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Tokens of a prompt at most: the middle of longer ones is left out. All, if absent.
    #[serde(default)]
    pub length: Option<usize>,
    /// Samples, drawn by the seed; all if absent.
    #[serde(default)]
    pub samples: Option<usize>,
    /// Whether records that cannot be used are left out, and reported, instead of refused.
    #[serde(default)]
    pub skip_damaged: bool,
    /// Label in reports; the name of the file if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// When it is asked.
    #[serde(default = "before", deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
}

fn context() -> String {
    "{context}".into()
}

fn question() -> String {
    "\n\nQuestion: {question}\nAnswer:".into()
}

fn answers() -> String {
    "answers".into()
}

fn max_new_tokens() -> usize {
    32
}

impl Questions {
    fn case(&self, number: usize, fields: &Fields) -> Checked<Case> {
        let references = fields.texts(&self.answers)?;
        if references.is_empty() {
            return Err(format!("`{}` holds no answer", self.answers));
        }
        let classes = self.classes.as_ref().map_or(Ok(Vec::new()), |name| fields.texts(name))?;
        if let Some(metric) = self.metric.without_classes(&classes) {
            return Err(format!("`{}` reads classes, and there are none", metric.name()));
        }
        let ask = Ask {
            question: fields.fill(&self.question)?,
            references,
            classes,
            metrics: self.metric.clone(),
            max_new_tokens: self.max_new_tokens,
            stop: self.stop.clone(),
        };
        Ok(Case {
            id: format!("record={number}"),
            axes: BTreeMap::new(),
            context: fields.fill(&self.context)?,
            asks: vec![ask],
        })
    }

    fn check(&self) -> Result<()> {
        let refuse = |parameter, reason: &str| {
            Err(Error::TaskParameter { task: NAME, parameter, reason: reason.into() })
        };
        if self.max_new_tokens == 0 {
            return refuse("max-new-tokens", "at least 1 is needed");
        }
        if names(&self.context).is_empty() && names(&self.question).is_empty() {
            return refuse("question", "the prompt names no field, so all would be the same");
        }
        if let (None, Some(metric)) = (&self.classes, self.metric.without_classes(&[])) {
            let reason = format!("`{}` reads them: name their field", metric.name());
            return refuse("classes", &reason);
        }
        if self.question.is_empty() {
            return refuse("question", "a question has at least one token");
        }
        if self.context.is_empty() && self.ask.contains(&Question::After) {
            return refuse("ask", "without a context nothing precedes the question");
        }
        check_length(NAME, self.length)
    }
}

impl TaskSpec for Questions {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| files::stem(&self.file))
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        resolved(&mut self.file, base);
    }
}

impl Task for Questions {
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        Ok(self.load(tokenizer, seed)?.samples)
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::DataLine`] for a record without a field that is named,
    /// and what a file refuses.
    fn load(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        self.check()?;
        let source = Source {
            task: NAME,
            path: &self.file,
            samples: self.samples,
            skip_damaged: self.skip_damaged,
        };
        let chosen = fields::choose(&source, seed, |draw, number, fields| {
            let case = self.case(number, &fields)?;
            draw.offer(number, case.id.clone(), case)
        })?;
        let cut = self.length.map_or(Cut::None, |length| Cut::Middle { length, end: length / 2 });
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
