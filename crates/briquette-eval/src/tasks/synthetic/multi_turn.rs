//! Several questions, one after the other, about one context.

use std::path::Path;

use briquette_models::Tokenizer;

use super::{
    Kind, NeedleForm, Source,
    cell::{Cell, at_least, refuse},
    needle::{Hidden, Scene, suffix},
    synthetic_task::{Family, synthetic_task},
};
use crate::{Result, tasks::Sample};

synthetic_task! {
    /// Needles asked for in turn: what was not asked first must have been kept all the same. Each
    /// turn is scored on its own. A depth is that of the needle of the first question in the
    /// haystack; all others lie anywhere.
    pub struct MultiTurn: 2 samples at depths {
        /// Needles hidden. Those not asked for distract.
        pub needles: usize = 3,
        /// Needles asked for, each in a turn of its own.
        pub questions: usize = 3,
        /// Whether the first question is asked again at the end.
        pub again: bool = false,
        /// How needles are written.
        pub form: NeedleForm = NeedleForm::Short,
        /// The text that needles are hidden in.
        pub haystack: Source = Source::BuiltIn,
    }
}

impl Family for MultiTurn {
    const NAME: &'static str = "multi-turn";

    fn default_label(&self) -> String {
        let mut label = format!("{}-{}of{}", Self::NAME, self.questions, self.needles);
        if self.again {
            label += "-again";
        }
        label + &suffix(&self.form, Kind::Words, Kind::Numbers, &self.haystack)
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
        self.form.resolve(base);
    }

    /// # Errors
    /// As [`Needle`](super::Needle).
    fn make(&self, tokenizer: &Tokenizer, cells: &[Cell], seed: u64) -> Result<Vec<Sample>> {
        let Self { needles, questions, .. } = self;
        at_least(Self::NAME, "questions", *questions, 1)?;
        if questions > needles {
            return refuse(Self::NAME, "questions", format!("{questions} of {needles} needles"));
        }
        let scene = Scene {
            task: Self::NAME,
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
