//! LongBench: 21 data sets of long documents, in English, Chinese and code.

use briquette_models::Tokenizer;
use serde::Deserialize;

use super::{
    choose::Source,
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut, check_length},
    published::{fill, protocol, published},
    read::Checked,
};
use crate::{Result, files, tasks::Samples};

file_task! {
    /// LongBench or LongBench-E, a JSONL file a data set (Bai et al., 2024, arXiv 2308.14508).
    ///
    /// Prompts, lengths of answers and scores are those of its `config/dataset2prompt.json`,
    /// `dataset2maxlen.json` and `eval.py`. A prompt longer than `length` loses its middle, as
    /// `pred.py` does; the two halves are joined as tokens, where `pred.py` joins their texts.
    /// Answers are greedy.
    pub struct LongBench {
        /// The data set, as `narrativeqa`; LongBench-E's `qasper_e` is asked as `qasper`. If absent
        /// it is the field `dataset` of each line, or if the line has none the name of the file.
        #[serde(default)]
        pub dataset: Option<String>,
        /// Tokens a prompt may have; all if absent.
        #[serde(default)]
        pub length: Option<usize>,
    }
}

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
        let protocol = protocol(Self::NAME, &published().long_bench, plain(&name))
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

impl Benchmark for LongBench {
    const NAME: &'static str = "LongBench";

    fn default_label(&self) -> String {
        let name = || self.dataset.clone().unwrap_or_else(|| files::stem(&self.file));
        format!("longbench-{}", name())
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(Self::NAME, self.length)?;
        if let Some(dataset) = &self.dataset {
            protocol(Self::NAME, &published().long_bench, plain(dataset))?;
        }
        let chosen = source
            .choose(seed, |draw, number, line| draw.offer_case(number, self.case(number, line)?))?;
        let cut = self.length.map_or(Cut::None, |length| Cut::Middle { length, end: length / 2 });
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
