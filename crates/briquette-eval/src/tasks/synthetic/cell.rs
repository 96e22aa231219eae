use std::collections::BTreeMap;

use briquette_models::Tokenizer;
use rand_chacha::ChaCha8Rng;

use crate::{
    Error, Result,
    metrics::Metric,
    tasks::{Question, Sample, Turn, assemble, sample::MOST_SAMPLES, seed},
};

/// The parameters all families share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid<'a> {
    pub(super) task: &'static str,
    pub(super) lengths: &'a [usize],
    /// `None` for a task where nothing has a depth.
    pub(super) depths: Option<&'a [u32]>,
    pub(super) samples: usize,
    pub(super) ask: &'a [Question],
}

impl Grid<'_> {
    /// One cell a sample.
    pub(super) fn cells<'t>(&self, tokenizer: &'t Tokenizer, seed: u64) -> Result<Vec<Cell<'t>>> {
        let Self { task, lengths, depths, samples, ask } = *self;
        once(task, "lengths", lengths)?;
        once(task, "depths", depths.unwrap_or(&[0]))?;
        once(task, "ask", ask)?;
        if let Some(depth) = depths.unwrap_or_default().iter().find(|depth| **depth > 100) {
            return refuse(task, "depths", format!("{depth} % is above 100"));
        }
        at_least(task, "samples", samples, 1)?;
        if samples > MOST_SAMPLES {
            let reason = format!("{samples} given, at most {MOST_SAMPLES} can be made");
            return refuse(task, "samples", reason);
        }
        let depths: Vec<Option<u32>> = match depths {
            Some(depths) => depths.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        let mut cells = Vec::new();
        for &length in lengths {
            for sample in 0..samples {
                let cell = |&depth| Cell { task, tokenizer, length, depth, sample, seed };
                cells.extend(depths.iter().map(cell));
            }
        }
        Ok(cells)
    }
}

/// The place of a sample in the grid, and what makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell<'a> {
    pub(super) task: &'static str,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) length: usize,
    pub(super) depth: Option<u32>,
    pub(super) sample: usize,
    pub(super) seed: u64,
}

impl Cell<'_> {
    /// Says that parts of `fixed` tokens leave no room in the length.
    pub(super) fn too_short(&self, fixed: usize) -> Error {
        Error::PromptTooShort { task: self.task, length: self.length, fixed }
    }

    /// 0 if nothing has a depth.
    pub(super) fn depth(&self) -> u32 {
        self.depth.unwrap_or(0)
    }

    /// A turn with one right answer, which continues the question and is known to the token.
    pub(super) fn exact_turn(&self, question: &str, answer: &str) -> Result<Turn> {
        let tokens = self.tokenizer.encode(question, false)?;
        let answer_tokens = assemble::continuation(self.tokenizer, question, &tokens, answer)?;
        let (references, most) = (vec![answer.trim().to_owned()], answer_tokens.len());
        let turn = Turn::new(tokens, references, Metric::ExactMatch, most);
        Ok(Turn { tokens: Some(answer_tokens), ..turn })
    }

    /// A turn whose answer lists `references`. It may take `least` tokens, or half as many again as
    /// the right answer `right`.
    pub(super) fn list_turn(
        &self,
        question: &str,
        references: Vec<String>,
        right: &str,
        least: usize,
    ) -> Result<Turn> {
        let right = self.tokenizer.encode(right, false)?.len();
        let most = least.max(right + right.div_ceil(2));
        let question = self.tokenizer.encode(question, false)?;
        Ok(Turn::new(question, references, Metric::Contains, most))
    }

    /// The sample that was made here, by its name. `further` are axes beside length and depth.
    pub(super) fn named(
        &self,
        further: &[(&str, usize)],
        context: Vec<u32>,
        turns: Vec<Turn>,
    ) -> Sample {
        let Self { length, sample, .. } = self;
        let id = match self.depth {
            Some(depth) => format!("length={length},depth={depth},sample={sample}"),
            None => format!("length={length},sample={sample}"),
        };
        let mut axes = BTreeMap::from([("length".to_owned(), self.length as u64)]);
        axes.extend(self.depth.map(|depth| ("depth".to_owned(), u64::from(depth))));
        axes.extend(further.iter().map(|&(name, value)| (name.to_owned(), value as u64)));
        Sample { id, axes, context, turns }
    }

    /// Random numbers of this sample, the same at every depth. Parts do not touch each other.
    pub(super) fn stream(&self, part: u64) -> ChaCha8Rng {
        let task = seed::hash(self.task.bytes());
        seed::rng(&[self.seed, task, self.length as u64, self.sample as u64, part])
    }
}

pub(super) fn refuse<T>(
    task: &'static str,
    parameter: &'static str,
    reason: impl Into<String>,
) -> Result<T> {
    Err(Error::TaskParameter { task, parameter, reason: reason.into() })
}

pub(super) fn at_least(
    task: &'static str,
    parameter: &'static str,
    value: usize,
    least: usize,
) -> Result<()> {
    if value < least {
        return refuse(task, parameter, format!("{value} given, at least {least} is needed"));
    }
    Ok(())
}

/// Refuses a list without a value, or with one twice.
fn once<T: PartialEq + std::fmt::Debug>(
    task: &'static str,
    parameter: &'static str,
    values: &[T],
) -> Result<()> {
    if values.is_empty() {
        return refuse(task, parameter, "no value given");
    }
    match (1..values.len()).find(|&i| values[..i].contains(&values[i])) {
        Some(i) => refuse(task, parameter, format!("{:?} is given twice", values[i])),
        None => Ok(()),
    }
}
