//! Several questions, one after the other, about one context.

use std::path::Path;

use super::{
    Kind, NeedleForm, Source,
    cell::{Cell, at_least, refuse},
    needle::{Scene, suffix},
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

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        let Self { needles, questions, .. } = self;
        at_least(Self::NAME, "questions", *questions, 1)?;
        if questions > needles {
            return refuse(Self::NAME, "questions", format!("{questions} of {needles} needles"));
        }
        let form = self.form.load(Kind::Numbers)?;
        let kinds = [Kind::Words, Kind::Numbers];
        let scene = Scene::new(Self::NAME, form, kinds, &self.haystack)?;
        cells.iter().map(|cell| self.sample(&scene, cell)).collect()
    }
}

impl MultiTurn {
    fn sample(&self, scene: &Scene, cell: &Cell<'_>) -> Result<Sample> {
        let mut choice = cell.stream(0);
        let (needles, names) = scene.draw(cell, self.needles, 1, &mut choice)?;
        let again = self.again.then_some(&needles[0]);
        let asked = needles[..self.questions].iter().chain(again);
        let turns = asked.map(|pair| scene.turn(cell, &[pair])).collect::<Result<Vec<_>>>()?;
        let context = scene.context(cell, &needles, &turns, names, cell.stream(1), &mut choice)?;
        let axes = [("needles", self.needles), ("questions", self.questions)];
        Ok(cell.named(&axes, context, turns))
    }
}
