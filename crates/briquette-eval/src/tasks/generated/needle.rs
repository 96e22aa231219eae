//! Needles in a haystack: one or several, of which one or several are asked for.

use std::path::{Path, PathBuf};

use briquette_models::Tokenizer;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Family, Kind, Source, answer_room, both,
    cell::{Cell, Grid, at_least},
    names::{Names, enumerate},
};
use crate::{
    Error, Result, files,
    grid::Question,
    metrics::Metric,
    tasks::{
        Form, Sample, Task, Turn,
        assemble::{self, Hiding},
        ember,
        haystack::Haystack,
        seed,
    },
};

const TASK: &str = "needle";

/// How needles are written and asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NeedleForm {
    /// `One of the special magic numbers is WORD:NUMBER.`, asked for up to `… is WORD:`. What the embedded model was
    /// trained on, and what [`NeedleTask`](crate::tasks::needle::NeedleTask) writes. A single answer is scored by
    /// [`Metric::ExactMatch`], several by [`Metric::Contains`].
    #[default]
    Short,
    /// RULER's published prompt, `One of the special magic numbers for WORD is: NUMBER.`, scored by
    /// [`Metric::Contains`].
    Ruler,
    /// A file of one's own, as [`Form::read`] reads it. A key has one number, which is asked for alone and scored by
    /// [`Metric::ExactMatch`].
    File(PathBuf),
}

impl TryFrom<String> for NeedleForm {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        match text.as_str() {
            "short" => Ok(Self::Short),
            "ruler" => Ok(Self::Ruler),
            file if file.ends_with(".toml") => Ok(Self::File(file.into())),
            _ => Err(format!("`{text}` is not `short`, `ruler` or a file that ends in .toml")),
        }
    }
}

impl From<NeedleForm> for String {
    fn from(form: NeedleForm) -> Self {
        match form {
            NeedleForm::Short => "short".into(),
            NeedleForm::Ruler => "ruler".into(),
            NeedleForm::File(path) => path.display().to_string(),
        }
    }
}

impl NeedleForm {
    /// Lets the path of a file begin at `base`.
    pub(super) fn resolve(&mut self, base: &Path) {
        if let Self::File(path) = self {
            *path = files::joined(base, path);
        }
    }

    /// The texts of a file.
    pub(super) fn load(&self) -> Result<Option<Form>> {
        match self {
            Self::File(path) => Form::read(&path.display().to_string()).map(Some),
            _ => Ok(None),
        }
    }
}

/// RULER's needle in a haystack (Hsieh et al. 2024, "NIAH": single, multi-key, multi-value, multi-query).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Needle {
    /// What tables call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the question comes.
    pub ask: Vec<Question>,
    /// Tokens of prompt and answer.
    pub lengths: Vec<usize>,
    /// Where the first value asked for lies, in percent of the haystack. All other needles lie anywhere.
    pub depths: Vec<u32>,
    /// Samples of each length and depth.
    pub samples: usize,
    /// Keys hidden. Those not asked for distract. At least `queries`, also if fewer are given.
    pub keys: usize,
    /// Values of each key, a needle each. All of them are asked for.
    pub values: usize,
    /// Keys asked for, at once.
    pub queries: usize,
    /// How needles are written.
    pub form: NeedleForm,
    /// What keys are.
    pub key_type: Kind,
    /// What values are.
    pub value_type: Kind,
    /// What they are hidden in.
    pub haystack: Source,
}

impl Default for Needle {
    fn default() -> Self {
        Self {
            label: None,
            ask: both(),
            lengths: vec![1024],
            depths: vec![0, 25, 50, 75, 100],
            samples: 2,
            keys: 1,
            values: 1,
            queries: 1,
            form: NeedleForm::Short,
            key_type: Kind::Words,
            value_type: Kind::Numbers,
            haystack: Source::BuiltIn,
        }
    }
}

impl Family for Needle {
    fn label(&self) -> String {
        if let Some(label) = &self.label {
            return label.clone();
        }
        let mut label = TASK.to_owned();
        for (count, name) in
            [(self.keys, "keys"), (self.values, "values"), (self.queries, "queries")]
        {
            if count != 1 {
                label += &format!("-{count}{name}");
            }
        }
        label + &self.scene().suffix()
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        self.haystack.resolve(base);
        self.form.resolve(base);
    }
}

impl Task for Needle {
    fn longest(&self) -> Option<usize> {
        self.lengths.iter().copied().max()
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::TooManyWords`] above 4032 words, what
    /// [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        let Self { lengths, depths, samples, ask, .. } = self;
        let grid = Grid { task: TASK, lengths, depths: Some(depths), samples: *samples, ask };
        let cells = grid.cells()?;
        for (parameter, count) in
            [("keys", self.keys), ("values", self.values), ("queries", self.queries)]
        {
            at_least(TASK, parameter, count, 1)?;
        }
        let own = self.form.load()?;
        if own.is_some() {
            let numbers = (self.key_type, self.value_type) == (Kind::Words, Kind::Numbers);
            if !numbers || self.values * self.queries > 1 {
                let reason = "a file's form is of one number under a word".to_owned();
                return Err(Error::TaskParameter { task: TASK, parameter: "form", reason });
            }
        }
        let scene = Scene { own: own.as_ref(), ..self.scene() };
        let place = Hidden { tokenizer, scene, haystack: scene.load()? };
        cells.iter().map(|cell| self.sample(&place, cell, seed)).collect()
    }
}

impl Needle {
    fn scene(&self) -> Scene<'_> {
        Scene {
            task: TASK,
            form: &self.form,
            own: None,
            key: self.key_type,
            value: self.value_type,
            source: &self.haystack,
        }
    }

    fn sample(&self, place: &Hidden<'_>, cell: &Cell, seed: u64) -> Result<Sample> {
        let keys = self.keys.max(self.queries);
        // The streams of `NeedleTask`, so that a run and `briquette needle` give the same prompts.
        let stream = |part: u64| {
            seed::rng(&[seed, cell.length as u64, keys as u64, cell.sample as u64, part])
        };
        let mut choice = stream(0);
        let (needles, names) = place.draw(keys, self.values, cell.length, &mut choice)?;
        let asked: Vec<&Pair> = needles[..self.queries].iter().collect();
        let turn = place.turn(&asked)?;
        let behind = turn.question.len() + turn.max_new_tokens;
        let many = self.values * self.queries > 1;
        let context = place.context(cell, &needles, many, behind, names, stream(1), &mut choice)?;
        Ok(Sample {
            id: cell.id(),
            axes: cell.axes(&[("keys", keys), ("values", self.values), ("queries", self.queries)]),
            context,
            turns: vec![turn],
        })
    }
}

/// How needles are written, and in what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene<'a> {
    pub(super) task: &'static str,
    pub(super) form: &'a NeedleForm,
    /// The texts of a form that is a file.
    pub(super) own: Option<&'a Form>,
    pub(super) key: Kind,
    pub(super) value: Kind,
    pub(super) source: &'a Source,
}

impl Scene<'_> {
    /// What a label says of it.
    pub(super) fn suffix(&self) -> String {
        let mut suffix = String::new();
        match self.form {
            NeedleForm::Short => {}
            NeedleForm::Ruler => suffix += "-ruler",
            NeedleForm::File(path) => {
                let stem = path.file_stem().unwrap_or_default();
                suffix += &format!("-{}", stem.to_string_lossy());
            }
        }
        if self.key != Kind::Words {
            suffix += &format!("-{}-keys", self.key.noun());
        }
        if self.value != Kind::Numbers {
            suffix += &format!("-{}-values", self.value.noun());
        }
        if let Some(source) = self.source.label() {
            suffix += &format!("-{source}");
        }
        suffix
    }

    /// `None` for a haystack of needles.
    pub(super) fn load(&self) -> Result<Option<Haystack>> {
        match self.source {
            Source::Needles => Ok(None),
            source => source.load(self.task).map(Some),
        }
    }

    /// `many` answers are asked for.
    fn introduction(&self, many: bool) -> String {
        let noun = self.value.noun();
        if let Some(own) = self.own {
            return own.introduction().0;
        }
        match self.form {
            NeedleForm::Short | NeedleForm::File(_) => ember::introduction(noun),
            NeedleForm::Ruler if many => format!(
                "Some special magic {noun}s are hidden within the following text. Make sure to memorize it. I will \
                 quiz you about the {noun}s afterwards."
            ),
            NeedleForm::Ruler => format!(
                "A special magic {noun} is hidden within the following text. Make sure to memorize it. I will quiz \
                 you about the {noun} afterwards."
            ),
        }
    }

    /// Whether the text begins with a line break, which the introduction lacks.
    fn breaks_line(&self) -> bool {
        match self.own {
            Some(own) => !own.line_break().is_empty(),
            None => *self.form == NeedleForm::Ruler,
        }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        let noun = self.value.noun();
        if let Some(own) = self.own {
            return own.needle(key, value);
        }
        match self.form {
            NeedleForm::Short | NeedleForm::File(_) => ember::needle(noun, key, value),
            NeedleForm::Ruler => {
                let before = if self.source.in_lines() { "\n" } else { " " };
                format!("{before}One of the special magic {noun}s for {key} is: {value}.")
            }
        }
    }

    fn question(&self, keys: &str, many: bool) -> String {
        let noun = self.value.noun();
        match self.form {
            NeedleForm::Short | NeedleForm::File(_) if many => format!(
                "\nWhat are all the special magic {noun}s for {keys} mentioned in the provided text? The special \
                 magic {noun}s are"
            ),
            NeedleForm::Short | NeedleForm::File(_) => ember::question(noun, keys),
            NeedleForm::Ruler if many => format!(
                "\nWhat are all the special magic {noun}s for {keys} mentioned in the provided text? The special \
                 magic {noun}s for {keys} mentioned in the provided text are"
            ),
            NeedleForm::Ruler => format!(
                "\nWhat is the special magic {noun} for {keys} mentioned in the provided text? The special magic \
                 {noun} for {keys} mentioned in the provided text is"
            ),
        }
    }
}

/// A key with its values.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

/// What needles are hidden in, for one tokenizer.
#[derive(Debug)]
pub(super) struct Hidden<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) scene: Scene<'a>,
    /// `None` for a haystack of needles.
    pub(super) haystack: Option<Haystack>,
}

impl Hidden<'_> {
    /// Keys with their values, and names for the needles of the haystack.
    pub(super) fn draw(
        &self,
        keys: usize,
        values: usize,
        length: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Vec<Pair>, Names)> {
        let Scene { task, key, value, .. } = self.scene;
        let needles = keys.saturating_mul(values);
        if needles > length {
            return Err(Error::PromptTooShort { task, length, fixed: needles });
        }
        let of = |kind, count| if kind == Kind::Words { count } else { 0 };
        let words = |keys: usize| of(key, keys) + of(value, keys * values);
        let further = match self.haystack {
            Some(_) => 0,
            // As many as short needles could be.
            None => {
                length / self.tokenizer.encode(&self.scene.needle("a", "1"), false)?.len().max(1)
            }
        };
        let mut names = Names::new(task, words(keys), words(further), rng)?;
        let mut pairs = Vec::with_capacity(keys);
        for _ in 0..keys {
            let key = names.draw(key, rng);
            let values = (0..values).map(|_| names.draw(value, rng)).collect();
            pairs.push(Pair { key, values });
        }
        Ok((pairs, names))
    }

    /// All values of these keys, asked for at once.
    pub(super) fn turn(&self, asked: &[&Pair]) -> Result<Turn> {
        let keys: Vec<&str> = asked.iter().map(|pair| pair.key.as_str()).collect();
        let references: Vec<String> =
            asked.iter().flat_map(|pair| pair.values.iter().cloned()).collect();
        let many = references.len() > 1;
        let (text, answer) = match (self.scene.own, &keys[..], &references[..]) {
            (Some(own), [key], [value]) => {
                let asked = own.asked(key, value);
                (asked.question, asked.answer)
            }
            _ => {
                let answer = references.first().cloned().unwrap_or_default();
                (self.scene.question(&enumerate(&keys), many), answer)
            }
        };
        let question = self.tokenizer.encode(&text, false)?;
        let list = || {
            let values =
                asked.iter().map(|pair| format!(" {}: {}", pair.key, pair.values.join(", ")));
            values.collect::<Vec<_>>().join(",")
        };
        let (tokens, max_new_tokens, metric) = match self.scene.form {
            NeedleForm::Short | NeedleForm::File(_) if !many => {
                let answer = assemble::continuation(self.tokenizer, &text, &question, &answer)?;
                let room = answer.len();
                (Some(answer), room, Metric::ExactMatch)
            }
            form => {
                // RULER generates 128 tokens.
                let least = if *form == NeedleForm::Ruler { 128 } else { 16 };
                let right = self.tokenizer.encode(&list(), false)?.len();
                (None, answer_room(least, right), Metric::Contains)
            }
        };
        Ok(Turn {
            question,
            references,
            classes: Vec::new(),
            metric,
            tokens,
            max_new_tokens,
            stop: Vec::new(),
        })
    }

    /// The haystack with the needles in it, the first value of the first key at the depth. `behind` are the tokens of
    /// questions and answers, `text` chooses the haystack and `choice` the places of the other needles.
    #[expect(clippy::too_many_arguments, reason = "one caller a task, and each part is its own")]
    pub(super) fn context(
        &self,
        cell: &Cell,
        needles: &[Pair],
        many: bool,
        behind: usize,
        mut names: Names,
        mut text: ChaCha8Rng,
        choice: &mut ChaCha8Rng,
    ) -> Result<Vec<u32>> {
        let Self { tokenizer, scene, haystack } = self;
        let introduction = tokenizer.encode(&scene.introduction(many), true)?;
        let inserts = needles
            .iter()
            .flat_map(|pair| pair.values.iter().map(|value| scene.needle(&pair.key, value)))
            .map(|needle| Ok(tokenizer.encode(&needle, false)?))
            .collect::<Result<Vec<_>>>()?;
        let hiding = Hiding {
            task: scene.task,
            length: cell.length,
            depth: cell.depth(),
            introduction: &introduction,
            inserts: &inserts,
            behind,
        };
        match haystack {
            // RULER's introduction ends without a line break: the text brings it.
            Some(haystack) if scene.breaks_line() => {
                let breaks = std::iter::once("\n").chain(std::iter::repeat(""));
                let pieces = haystack.pieces(text).zip(breaks);
                let pieces = pieces.map(|(piece, before)| format!("{before}{piece}"));
                hiding.context(tokenizer, pieces, choice)
            }
            Some(haystack) => hiding.context(tokenizer, haystack.pieces(text), choice),
            None => {
                let needle = || {
                    let key = names.draw(scene.key, &mut text);
                    let value = names.draw(scene.value, &mut text);
                    Some(scene.needle(&key, &value))
                };
                hiding.context(tokenizer, std::iter::from_fn(needle), choice)
            }
        }
    }
}
