//! ZeroSCROLLS: summaries, questions and aggregation over long texts.

use std::collections::BTreeMap;

use briquette_models::Tokenizer;
use serde::Deserialize;

use super::{
    choose::{Earlier, Source},
    file_task::{Benchmark, file_task},
    named_by,
    prompt::{Ask, Case, Cut, check_length},
    published::{Protocol, protocol, published},
    read::Checked,
};
use crate::{Result, tasks::Samples};

file_task! {
    /// ZeroSCROLLS, a JSONL file a data set (Shaham et al., 2023, arXiv 2305.14196).
    ///
    /// The file holds whole prompts; the question begins at `query_start_index`. A prompt longer
    /// than `length` loses the end of what precedes the question, and says so in the words of the
    /// file, as its `run_hf_model.py` does. Lines of one `id` are one sample with several right
    /// answers. The test split has been published without answers: only the validation split can be
    /// scored.
    pub struct ZeroScrolls {
        /// The data set, as `gov_report`; the name of the file or of its folder if absent.
        #[serde(default)]
        pub dataset: Option<String>,
        /// Tokens a prompt may have; all if absent.
        #[serde(default)]
        pub length: Option<usize>,
    }
}

/// A line, with the fields used. Indices count characters of `input`.
#[derive(Deserialize)]
struct Line {
    id: String,
    input: String,
    output: Option<String>,
    document_end_index: usize,
    query_start_index: usize,
    truncation_seperator: String,
}

impl ZeroScrolls {
    fn dataset(&self) -> String {
        let known = |name: &str| published().zero_scrolls.contains_key(name);
        self.dataset.clone().unwrap_or_else(|| named_by(&self.file, known))
    }
}

/// A prompt, and the words for what may be left out of it.
struct Scroll {
    case: Case,
    separator: String,
}

fn scroll(protocol: &Protocol, line: Line) -> Checked<Scroll> {
    let Line { id, input, output, document_end_index, query_start_index, .. } = line;
    let output = output.ok_or(
        "`output` is null: the test split has no answers, the validation split has".to_owned(),
    )?;
    if document_end_index > query_start_index {
        return Err(format!(
            "the document ends at {document_end_index}, behind the start of the query at {query_start_index}"
        ));
    }
    let characters = || input.chars().count();
    let start =
        input.char_indices().map(|(at, _)| at).nth(query_start_index).ok_or_else(|| {
            format!("no query at {query_start_index} in {} characters", characters())
        })?;
    let (context, question) = input.split_at(start);
    let case = Case {
        id,
        axes: BTreeMap::new(),
        context: context.to_owned(),
        asks: vec![Ask::new(protocol, question.to_owned(), vec![output])],
    };
    Ok(Scroll { case, separator: line.truncation_seperator })
}

impl Benchmark for ZeroScrolls {
    const NAME: &'static str = "ZeroSCROLLS";

    fn default_label(&self) -> String {
        format!("zero-scrolls-{}", self.dataset())
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(Self::NAME, self.length)?;
        let protocol = protocol(Self::NAME, &published().zero_scrolls, &self.dataset())?;
        let chosen = source.choose(seed, |draw, number, line| {
            let scroll = scroll(protocol, line)?;
            match draw.earlier(&scroll.case.id) {
                Earlier::None => draw.offer(number, scroll.case.id.clone(), scroll),
                Earlier::Kept(first) => {
                    let more = scroll.case.asks.into_iter().flat_map(|ask| ask.references);
                    first.case.asks[0].references.extend(more);
                    Ok(())
                }
                Earlier::Passed => Ok(()),
            }
        })?;
        chosen.samples(|Scroll { case, separator }| {
            let cut = match self.length {
                Some(length) => Cut::Context { task: Self::NAME, length, separator: &separator },
                None => Cut::None,
            };
            case.sample(tokenizer, cut)
        })
    }
}
