//! Needles in a haystack: one or several, of which one or several are asked for.

use std::path::{Path, PathBuf};

use briquette_models::Tokenizer;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Kind, Source,
    cell::{Cell, at_least, refuse},
    common::{exact_turn, list_turn},
    names::{Names, enumerate},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Error, Result, files,
    tasks::{
        NeedleTemplate, Sample, Turn, assemble::Hiding, ember, haystack::Haystack,
        needle_template::QuestionAnswer, seed,
    },
};

/// Forms of needles and their question.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NeedleForm {
    /// `One of the special magic numbers is WORD:NUMBER.`, asked for up to `… is WORD:`. What the
    /// embedded model was trained on, and what [`NeedleTask`](crate::tasks::needle::NeedleTask)
    /// writes. A single answer is scored by
    /// [`Metric::ExactMatch`](crate::metrics::Metric::ExactMatch), several by
    /// [`Metric::Contains`](crate::metrics::Metric::Contains).
    #[default]
    Short,
    /// RULER's published prompt, `One of the special magic numbers for WORD is: NUMBER.`, scored by
    /// [`Metric::Contains`](crate::metrics::Metric::Contains).
    Ruler,
    /// A file of one's own, as [`NeedleTemplate::read`] reads it. A key has one number, which is
    /// asked for alone and scored by [`Metric::ExactMatch`](crate::metrics::Metric::ExactMatch).
    File(PathBuf),
}

impl TryFrom<String> for NeedleForm {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        match text.as_str() {
            "short" | "ember" => Ok(Self::Short),
            "ruler" => Ok(Self::Ruler),
            file if file.ends_with(".toml") => Ok(Self::File(file.into())),
            _ => Err(format!(
                "`{text}` is not `short`, `ruler` or a file that ends in .toml (`ember` is `short`)"
            )),
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

    /// The texts, of a file those that are read from it.
    ///
    /// # Errors
    /// As [`NeedleTemplate::read`].
    pub(super) fn load(&self) -> Result<Texts> {
        match self {
            Self::Short => Ok(Texts::Short),
            Self::Ruler => Ok(Texts::Ruler),
            Self::File(path) => NeedleTemplate::read(&path.display().to_string()).map(Texts::Own),
        }
    }
}

synthetic_task! {
    /// RULER's needle in a haystack (Hsieh et al. 2024, "NIAH": single, multi-key, multi-value,
    /// multi-query). A depth is that of the first value of the answer in the haystack; all other
    /// needles lie anywhere.
    pub struct Needle: 2 samples at depths {
        /// Keys hidden. Those not asked for distract. At least `queries`, also if fewer are given.
        pub keys: usize = 1,
        /// Values of each key, a needle each. All of them are asked for.
        pub values: usize = 1,
        /// Keys asked for, at once.
        pub queries: usize = 1,
        /// How needles are written.
        pub form: NeedleForm = NeedleForm::Short,
        /// Kind of the keys.
        pub key_type: Kind = Kind::Words,
        /// Kind of the values.
        pub value_type: Kind = Kind::Numbers,
        /// The text that needles are hidden in.
        pub haystack: Source = Source::BuiltIn,
    }
}

impl Family for Needle {
    const NAME: &'static str = "needle";

    fn default_label(&self) -> String {
        let mut label = Self::NAME.to_owned();
        for (count, name) in
            [(self.keys, "keys"), (self.values, "values"), (self.queries, "queries")]
        {
            if count != 1 {
                label += &format!("-{count}{name}");
            }
        }
        label + &suffix(&self.form, self.key_type, self.value_type, &self.haystack)
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
        self.form.resolve(base);
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::TooManyWords`] above 4032
    /// words, what [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn make(&self, tokenizer: &Tokenizer, cells: &[Cell], seed: u64) -> Result<Vec<Sample>> {
        for (parameter, count) in
            [("keys", self.keys), ("values", self.values), ("queries", self.queries)]
        {
            at_least(Self::NAME, parameter, count, 1)?;
        }
        let texts = self.form.load()?;
        if matches!(texts, Texts::Own(_)) {
            let numbers = (self.key_type, self.value_type) == (Kind::Words, Kind::Numbers);
            if !numbers || self.values * self.queries > 1 {
                return refuse(Self::NAME, "form", "a file's form is of one number under a word");
            }
        }
        let scene = Scene {
            task: Self::NAME,
            texts,
            key: self.key_type,
            value: self.value_type,
            source: &self.haystack,
        };
        let place = Hidden::new(tokenizer, scene)?;
        cells.iter().map(|cell| self.sample(&place, cell, seed)).collect()
    }
}

impl Needle {
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

/// The part of a label that says how needles are written, and in what.
pub(super) fn suffix(form: &NeedleForm, key: Kind, value: Kind, source: &Source) -> String {
    let mut suffix = String::new();
    match form {
        NeedleForm::Short => {}
        NeedleForm::Ruler => suffix += "-ruler",
        NeedleForm::File(path) => suffix += &format!("-{}", files::stem(path)),
    }
    if key != Kind::Words {
        suffix += &format!("-{}-keys", key.noun());
    }
    if value != Kind::Numbers {
        suffix += &format!("-{}-values", value.noun());
    }
    if let Some(source) = source.label() {
        suffix += &format!("-{source}");
    }
    suffix
}

/// The texts of a [`NeedleForm`].
#[derive(Debug)]
pub(super) enum Texts {
    Short,
    Ruler,
    /// Those of a file.
    Own(NeedleTemplate),
}

/// How needles are written, and in what.
#[derive(Debug)]
pub(super) struct Scene<'a> {
    pub(super) task: &'static str,
    pub(super) texts: Texts,
    pub(super) key: Kind,
    pub(super) value: Kind,
    pub(super) source: &'a Source,
}

impl Scene<'_> {
    /// `None` for a haystack of needles.
    fn load(&self) -> Result<Option<Haystack>> {
        match self.source {
            Source::Needles => Ok(None),
            source => source.load(self.task).map(Some),
        }
    }

    /// `many` answers are asked for.
    fn introduction(&self, many: bool) -> String {
        let noun = self.value.noun();
        match &self.texts {
            Texts::Own(form) => form.introduction().0,
            Texts::Short => ember::introduction(noun),
            Texts::Ruler if many => format!(
                "Some special magic {noun}s are hidden within the following text. Make sure to memorize it. I will \
                 quiz you about the {noun}s afterwards."
            ),
            Texts::Ruler => format!(
                "A special magic {noun} is hidden within the following text. Make sure to memorize it. I will quiz \
                 you about the {noun} afterwards."
            ),
        }
    }

    /// Whether the text begins with a line break, which the introduction lacks.
    fn breaks_line(&self) -> bool {
        match &self.texts {
            Texts::Own(form) => !form.line_break().is_empty(),
            Texts::Short => false,
            Texts::Ruler => true,
        }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        let noun = self.value.noun();
        match &self.texts {
            Texts::Own(form) => form.needle(key, value),
            Texts::Short => ember::needle(noun, key, value),
            Texts::Ruler => {
                let before = if self.source.in_lines() { "\n" } else { " " };
                format!("{before}One of the special magic {noun}s for {key} is: {value}.")
            }
        }
    }

    /// The question for all values of these keys. Of several answers it names the first.
    fn question_answer(&self, keys: &[&str], values: &[String]) -> QuestionAnswer {
        let (noun, keys, many) = (self.value.noun(), enumerate(keys), values.len() > 1);
        let answer = values.first().cloned().unwrap_or_default();
        let question = match &self.texts {
            Texts::Own(form) => return form.question_answer(&keys, &answer),
            Texts::Short if many => format!(
                "\nWhat are all the special magic {noun}s for {keys} mentioned in the provided text? The special \
                 magic {noun}s are"
            ),
            Texts::Short => ember::question(noun, &keys),
            Texts::Ruler if many => format!(
                "\nWhat are all the special magic {noun}s for {keys} mentioned in the provided text? The special \
                 magic {noun}s for {keys} mentioned in the provided text are"
            ),
            Texts::Ruler => format!(
                "\nWhat is the special magic {noun} for {keys} mentioned in the provided text? The special magic \
                 {noun} for {keys} mentioned in the provided text is"
            ),
        };
        QuestionAnswer { question, answer }
    }
}

/// A key with its values.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

/// The text that needles are hidden in, for one tokenizer.
#[derive(Debug)]
pub(super) struct Hidden<'a> {
    tokenizer: &'a Tokenizer,
    scene: Scene<'a>,
    haystack: Option<Haystack>,
}

impl<'a> Hidden<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, scene: Scene<'a>) -> Result<Self> {
        let haystack = scene.load()?;
        Ok(Self { tokenizer, scene, haystack })
    }

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
        let QuestionAnswer { question, answer } = self.scene.question_answer(&keys, &references);
        let ruler = matches!(self.scene.texts, Texts::Ruler);
        if !ruler && !many {
            return exact_turn(self.tokenizer, &question, &answer);
        }
        let values = asked.iter().map(|pair| format!(" {}: {}", pair.key, pair.values.join(", ")));
        let right = values.collect::<Vec<_>>().join(",");
        // RULER generates 128 tokens.
        let least = if ruler { 128 } else { 16 };
        list_turn(self.tokenizer, &question, references, &right, least)
    }

    /// The haystack with the needles in it, the first value of the first key at the depth. `behind`
    /// are the tokens of questions and answers, `text` chooses the haystack and `choice` the places
    /// of the other needles.
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
