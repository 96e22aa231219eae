//! LongBench v2: questions with four choices about long texts.

use std::collections::BTreeMap;

use briquette_models::Tokenizer;
use serde::Deserialize;

use super::{
    choose::Source,
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut, check_length},
    published::{fill, published},
    read::Checked,
};
use crate::{Result, tasks::Samples};

file_task! {
    /// LongBench v2, `data.json` or a line a sample (Bai et al., 2024, arXiv 2412.15204).
    ///
    /// The prompt is its `0shot.txt`, the answer the letter after "The correct answer is". A prompt
    /// longer than `length` loses its middle, as in `pred.py`. Answers are greedy, where `pred.py`
    /// samples at a temperature of 0.1.
    pub struct LongBenchV2 {
        /// Tokens a prompt may have; all if absent.
        #[serde(default)]
        pub length: Option<usize>,
    }
}

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

impl Benchmark for LongBenchV2 {
    const NAME: &'static str = "LongBench v2";

    fn default_label(&self) -> String {
        "longbench-v2".into()
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        check_length(Self::NAME, self.length)?;
        let chosen = source
            .choose(seed, |draw, number, record| draw.offer_case(number, case(number, record)?))?;
        // The end keeps the odd token.
        let middle = |length: usize| Cut::Middle { length, end: length.div_ceil(2) };
        let cut = self.length.map_or(Cut::None, middle);
        chosen.samples(|case| case.sample(tokenizer, cut))
    }
}
