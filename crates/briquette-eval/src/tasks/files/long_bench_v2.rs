//! LongBench v2: questions with four choices about long texts.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    before,
    choose::Source,
    prompt::{Ask, Case, Cut, check_length},
    published::{fill, published},
    read::Checked,
    resolved,
};
use crate::{
    Result,
    tasks::{Question, Sample, Samples, Task, TaskSpec},
};

/// Name in errors.
const NAME: &str = "LongBench v2";

/// LongBench v2, `data.json` or a line a sample (Bai et al., 2024, arXiv 2412.15204).
///
/// The prompt is its `0shot.txt`, the answer the letter after "The correct answer is". A prompt
/// longer than `length` loses its middle, as in `pred.py`. Answers are greedy, where `pred.py`
/// samples at a temperature of 0.1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LongBenchV2 {
    /// The file.
    pub file: PathBuf,
    /// Tokens a prompt may have; all if absent.
    #[serde(default)]
    pub length: Option<usize>,
    /// Samples, drawn by the seed; all if absent.
    #[serde(default)]
    pub samples: Option<usize>,
    /// Whether records that cannot be used are left out, and reported, instead of refused.
    #[serde(default)]
    pub skip_damaged: bool,
    /// Label in reports; `longbench-v2` if absent.
    #[serde(default)]
    pub label: Option<String>,
    /// When it is asked.
    #[serde(default = "before", deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
}

/// A record, with the fields used.
#[derive(Deserialize)]
struct Record {
    #[serde(rename = "_id")]
    id: Option<String>,
    difficulty: Option<Difficulty>,
    length: Option<Length>,
    question: String,
    #[serde(rename = "choice_A")]
    a: String,
    #[serde(rename = "choice_B")]
    b: String,
    #[serde(rename = "choice_C")]
    c: String,
    #[serde(rename = "choice_D")]
    d: String,
    answer: String,
    context: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Difficulty {
    Easy,
    Hard,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Length {
    Short,
    Medium,
    Long,
}

fn case(number: usize, record: Record) -> Checked<Case> {
    let protocol = &published().long_bench_v2;
    if !["A", "B", "C", "D"].contains(&record.answer.as_str()) {
        return Err(format!("the answer `{}` is none of A, B, C and D", record.answer));
    }
    let fields = [
        ("context", record.context.trim()),
        ("question", record.question.trim()),
        ("a", record.a.trim()),
        ("b", record.b.trim()),
        ("c", record.c.trim()),
        ("d", record.d.trim()),
    ];
    // The classes of the published table, as numbers.
    let hard = record.difficulty.map(|difficulty| ("hard".to_owned(), difficulty as u64));
    let size = record.length.map(|length| ("length-class".to_owned(), length as u64));
    Ok(Case {
        id: record.id.unwrap_or_else(|| format!("record={number}")),
        axes: hard.into_iter().chain(size).collect::<BTreeMap<String, u64>>(),
        context: fill(&protocol.context, &fields),
        asks: vec![Ask::new(protocol, fill(&protocol.question, &fields), vec![record.answer])],
    })
}

impl TaskSpec for LongBenchV2 {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| "longbench-v2".into())
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        resolved(&mut self.file, base);
    }
}

impl Task for LongBenchV2 {
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        Ok(self.load(tokenizer, seed)?.samples)
    }

    fn load(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(NAME, self.length)?;
        let source = Source {
            task: NAME,
            path: &self.file,
            samples: self.samples,
            skip_damaged: self.skip_damaged,
        };
        let chosen = source.choose(seed, |draw, number, record| {
            let case = case(number, record)?;
            draw.offer(number, case.id.clone(), case)
        })?;
        let cut = match self.length {
            // The end keeps the odd token.
            Some(length) => Cut::Middle { length, end: length.div_ceil(2) },
            None => Cut::None,
        };
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
