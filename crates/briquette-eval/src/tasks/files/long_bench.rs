//! LongBench: 21 data sets of long documents, in English, Chinese and code.

use std::path::{Path, PathBuf};

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    before,
    choose::Source,
    prompt::{Ask, Case, Cut, check_length},
    published::{fill, protocol, published},
    read::Checked,
    resolved,
};
use crate::{
    Result, files,
    tasks::{Question, Sample, Samples, Task, TaskSpec},
};

/// Name in errors.
const NAME: &str = "LongBench";

/// LongBench or LongBench-E, a JSONL file a data set (Bai et al., 2024, arXiv 2308.14508).
///
/// Prompts, lengths of answers and scores are those of its `config/dataset2prompt.json`,
/// `dataset2maxlen.json` and `eval.py`. A prompt longer than `length` loses its middle, as
/// `pred.py` does; the two halves are joined as tokens, where `pred.py` joins their texts. Answers
/// are greedy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LongBench {
    /// The file.
    pub file: PathBuf,
    /// The data set, as `narrativeqa`; LongBench-E's `qasper_e` is asked as `qasper`. If absent it
    /// is the field `dataset` of each line, or if the line has none the name of the file.
    #[serde(default)]
    pub dataset: Option<String>,
    /// Tokens a prompt may have; all if absent.
    #[serde(default)]
    pub length: Option<usize>,
    /// Samples, drawn by the seed; all if absent.
    #[serde(default)]
    pub samples: Option<usize>,
    /// Whether lines that cannot be used are left out, and reported, instead of refused.
    #[serde(default)]
    pub skip_damaged: bool,
    /// Label in reports; `longbench-` and the data set or the name of the file if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// When it is asked.
    #[serde(default = "before", deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
}

/// A line, with the fields used.
#[derive(Deserialize)]
struct Line {
    input: String,
    context: String,
    answers: Vec<String>,
    length: Option<u64>,
    dataset: Option<String>,
    all_classes: Option<Vec<String>>,
    #[serde(rename = "_id")]
    id: Option<String>,
}

impl LongBench {
    fn case(&self, number: usize, line: Line) -> Checked<Case> {
        if let (Some(asked), Some(found)) = (&self.dataset, &line.dataset)
            && plain(asked) != plain(found)
        {
            return Err(format!("of the data set `{found}`, not `{asked}`"));
        }
        let name = self.dataset.clone().or(line.dataset).unwrap_or_else(|| files::stem(&self.file));
        let protocol = protocol(NAME, &published().long_bench, plain(&name))
            .map_err(|error| error.to_string())?;
        if line.answers.is_empty() {
            return Err("`answers` is empty".into());
        }
        let classes = line.all_classes.unwrap_or_default();
        if protocol.classes && classes.is_empty() {
            return Err("`all_classes` is absent, the answer is one of them".into());
        }
        let fields = [("context", line.context.as_str()), ("input", line.input.as_str())];
        let ask = Ask::new(protocol, fill(&protocol.question, &fields), line.answers);
        Ok(Case {
            id: line.id.unwrap_or_else(|| format!("record={number}")),
            axes: line.length.map(|length| ("words".to_owned(), length)).into_iter().collect(),
            context: fill(&protocol.context, &fields),
            asks: vec![Ask { classes, ..ask }],
        })
    }
}

/// LongBench-E has the prompts of LongBench.
fn plain(dataset: &str) -> &str {
    dataset.strip_suffix("_e").unwrap_or(dataset)
}

impl TaskSpec for LongBench {
    fn label(&self) -> String {
        let name = || self.dataset.clone().unwrap_or_else(|| files::stem(&self.file));
        self.label.clone().unwrap_or_else(|| format!("longbench-{}", name()))
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        resolved(&mut self.file, base);
    }
}

impl Task for LongBench {
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        Ok(self.load(tokenizer, seed)?.samples)
    }

    fn load(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(NAME, self.length)?;
        if let Some(dataset) = &self.dataset {
            protocol(NAME, &published().long_bench, plain(dataset))?;
        }
        let source = Source {
            task: NAME,
            path: &self.file,
            samples: self.samples,
            skip_damaged: self.skip_damaged,
        };
        let chosen = source.choose(seed, |draw, number, line| {
            let case = self.case(number, line)?;
            draw.offer(number, case.id.clone(), case)
        })?;
        let cut = match self.length {
            Some(length) => Cut::Middle { length, end: length / 2 },
            None => Cut::None,
        };
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
