//! Several questions, one after the other, about one context.

use std::path::Path;

use briquette_models::Tokenizer;
use serde::{Deserialize, Serialize};

use super::{
    Kind, NeedleForm, Source, TaskSpec, both,
    cell::{Cell, Grid, at_least, refuse},
    needle::{Hidden, Scene, suffix},
};
use crate::{
    Result,
    tasks::{Question, Sample, Task},
};

const TASK: &str = "multi-turn";

/// Needles asked for in turn: what was not asked first must have been kept all the same. Each turn
/// is scored on its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct MultiTurn {
    /// Label in tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the first question comes. The others always come after.
    #[serde(deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
    /// Tokens of prompt, questions and answers.
    pub lengths: Vec<usize>,
    /// Depth of the needle of the first question, in percent of the haystack. All others lie
    /// anywhere.
    pub depths: Vec<u32>,
    /// Samples of each length and depth.
    pub samples: usize,
    /// Needles hidden. Those not asked for distract.
    pub needles: usize,
    /// Needles asked for, each in a turn of its own.
    pub questions: usize,
    /// Whether the first question is asked again at the end.
    pub again: bool,
    /// How needles are written.
    pub form: NeedleForm,
    /// The text that needles are hidden in.
    pub haystack: Source,
}

impl Default for MultiTurn {
    fn default() -> Self {
        Self {
            label: None,
            ask: both(),
            lengths: vec![1024],
            depths: vec![0, 25, 50, 75, 100],
            samples: 2,
            needles: 3,
            questions: 3,
            again: false,
            form: NeedleForm::Short,
            haystack: Source::BuiltIn,
        }
    }
}

impl TaskSpec for MultiTurn {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| {
            let mut label = format!("{TASK}-{}of{}", self.questions, self.needles);
            if self.again {
                label += "-again";
            }
            label + &suffix(&self.form, Kind::Words, Kind::Numbers, &self.haystack)
        })
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        self.haystack.resolve(base);
        self.form.resolve(base);
    }
}

impl Task for MultiTurn {
    fn longest(&self) -> Option<usize> {
        self.lengths.iter().copied().max()
    }

    /// # Errors
    /// As [`Needle`](super::Needle).
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        let Self { lengths, depths, samples, ask, needles, questions, .. } = self;
        let grid = Grid { task: TASK, lengths, depths: Some(depths), samples: *samples, ask };
        let cells = grid.cells()?;
        at_least(TASK, "questions", *questions, 1)?;
        if questions > needles {
            return refuse(TASK, "questions", format!("{questions} of {needles} needles"));
        }
        let scene = Scene {
            task: TASK,
            texts: self.form.load()?,
            key: Kind::Words,
            value: Kind::Numbers,
            source: &self.haystack,
        };
        let place = Hidden::new(tokenizer, scene)?;
        cells.iter().map(|cell| self.sample(&place, cell, seed)).collect()
    }
}

impl MultiTurn {
    fn sample(&self, place: &Hidden<'_>, cell: &Cell, seed: u64) -> Result<Sample> {
        let mut choice = cell.stream(seed, 0);
        let (needles, names) = place.draw(self.needles, 1, cell.length, &mut choice)?;
        let again = self.again.then_some(&needles[0]);
        let turns = needles[..self.questions]
            .iter()
            .chain(again)
            .map(|pair| place.turn(&[pair]))
            .collect::<Result<Vec<_>>>()?;
        let behind = turns.iter().map(|turn| turn.question.len() + turn.max_new_tokens).sum();
        let many = turns.len() > 1;
        let text = cell.stream(seed, 1);
        let context = place.context(cell, &needles, many, behind, names, text, &mut choice)?;
        let axes = cell.axes(&[("needles", self.needles), ("questions", self.questions)]);
        Ok(Sample { id: cell.id(), axes, context, turns })
    }
}
