//! Questions of one's own, from any file of records.

use briquette_models::Tokenizer;

use super::{
    choose::Source,
    fields::{self, Fields, names},
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut, check_length},
    read::Checked,
};
use crate::{
    Error, Result, files,
    metrics::Metrics,
    tasks::{Question, Samples},
};

file_task! {
    /// Questions with known answers, a record each: JSON lines, a JSON array, or a table (`.csv`)
    /// with a header.
    ///
    /// The prompt is `context` and then `question`, two templates in which `{name}` stands for a
    /// field of the record. Without a label the task is called after its file.
    pub struct Questions {
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
    }
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
        Ok(Case::of_record(number, fields.fill(&self.context)?, ask))
    }

    fn check(&self) -> Result<()> {
        let refuse = |parameter, reason: &str| {
            Err(Error::TaskParameter { task: Self::NAME, parameter, reason: reason.into() })
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
        check_length(Self::NAME, self.length)
    }
}

impl Benchmark for Questions {
    const NAME: &'static str = "questions";

    fn default_label(&self) -> String {
        files::stem(&self.file)
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        self.check()?;
        let chosen = fields::choose(&source, seed, |draw, number, fields| {
            draw.offer_case(number, self.case(number, &fields)?)
        })?;
        let cut = self.length.map_or(Cut::None, |length| Cut::Middle { length, end: length / 2 });
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
