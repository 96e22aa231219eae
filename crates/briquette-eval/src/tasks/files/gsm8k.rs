//! GSM8K: word problems of grade-school mathematics.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use briquette_models::Tokenizer;
use serde::Deserialize;

use super::{
    checked,
    choose::Source,
    file_task::{Benchmark, file_task},
    prompt::{Ask, Case, Cut},
    published::{fill, published},
    read::{self, Checked},
};
use crate::{
    Error, Result,
    metrics::{Metric, Metrics},
    tasks::{Question, Samples},
};

file_task! {
    /// GSM8K, a JSONL file (Cobbe et al., 2021, arXiv 2110.14168).
    ///
    /// The prompt is that of lm-evaluation-harness: solved problems, then the one to solve. The
    /// solved ones are the first lines of `shots-from`, or of the file itself, whose samples then
    /// begin behind them; the harness draws them.
    pub struct Gsm8k {
        /// Solved problems in the prompt. Without one, a question cannot come after compression.
        #[serde(default = "shots")]
        pub shots: usize,
        /// The file they come from, as `train.jsonl`; `file` if absent.
        #[serde(default)]
        pub shots_from: Option<PathBuf>,
        /// Of `gsm8k` (the default), `gsm8k-strict` and `gsm8k-flexible`, one or a list.
        #[serde(default)]
        pub metric: Option<Metrics>,
    }
}

fn shots() -> usize {
    5
}

#[derive(Deserialize)]
struct Line {
    question: String,
    answer: String,
}

impl Gsm8k {
    /// The solved problems of another file.
    fn shots_of(&self, path: &Path) -> Result<String> {
        let (mut text, mut found) = (String::new(), 0);
        read::records(path, |line, record: Checked<Line>| {
            if found < self.shots {
                let solved = record.and_then(checked_answer);
                let solved = solved.map_err(|message| Error::DataLine {
                    path: path.into(),
                    line,
                    message,
                })?;
                text += &shot(&solved);
                found += 1;
            }
            Ok(())
        })?;
        if found < self.shots {
            return Err(Error::TooFewSamples { path: path.into(), asked: self.shots, found });
        }
        Ok(text)
    }
}

fn shot(solved: &Line) -> String {
    let fields = [("question", solved.question.as_str()), ("answer", &solved.answer)];
    fill(&published().gsm8k.context, &fields)
}

/// A solution ends with its number behind `####`.
fn checked_answer(line: Line) -> Checked<Line> {
    let number = line.answer.rsplit_once("#### ").map(|(_, number)| number.trim());
    match number {
        Some(number) if number.contains(|c: char| c.is_ascii_digit()) => Ok(line),
        _ => Err("no number behind `#### ` in `answer`".into()),
    }
}

impl Benchmark for Gsm8k {
    const NAME: &'static str = "GSM8K";

    fn default_label(&self) -> String {
        "gsm8k".into()
    }

    fn second_file(&mut self) -> Option<&mut PathBuf> {
        self.shots_from.as_mut()
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples> {
        let protocol = &published().gsm8k;
        let own = [Metric::Gsm8k, Metric::Gsm8kStrict, Metric::Gsm8kFlexible];
        let metrics = checked(Self::NAME, self.metric.as_ref(), protocol.metric, &own)?;
        if self.shots == 0 && self.ask.contains(&Question::After) {
            let reason = "without shots nothing precedes the question, so it cannot come after";
            return Err(Error::TaskParameter {
                task: Self::NAME,
                parameter: "ask",
                reason: reason.into(),
            });
        }
        // Of another file, or gathered from the first lines of this one.
        let mut context = match &self.shots_from {
            Some(path) => self.shots_of(path)?,
            None => String::new(),
        };
        let mut missing = if self.shots_from.is_some() { 0 } else { self.shots };
        let chosen = source.choose(seed, |draw, number, line: Line| {
            let line = checked_answer(line)?;
            if missing > 0 {
                missing -= 1;
                context += &shot(&line);
                return Ok(());
            }
            let question = fill(&protocol.question, &[("question", &line.question)]);
            let ask =
                Ask { metrics: metrics.clone(), ..Ask::new(protocol, question, vec![line.answer]) };
            let id = format!("record={number}");
            draw.offer(number, id.clone(), (id, ask))
        })?;
        chosen.samples(|(id, ask)| {
            let axes = BTreeMap::from([("shots".into(), self.shots as u64)]);
            let case = Case { id, axes, context: context.clone(), asks: vec![ask] };
            case.sample(tokenizer, Cut::None)
        })
    }
}
