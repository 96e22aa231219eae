//! Needles in a haystack: one or several, of which one or several are asked for.

use std::path::{Path, PathBuf};

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Kind, Source,
    cell::{Cell, at_least, refuse},
    names::{Names, enumerate},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Result, files,
    tasks::{
        NeedleTemplate, Sample, Turn,
        assemble::{Hiding, encode_all},
        haystack::Haystack,
        needle_template::QuestionAnswer,
        seed,
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

    /// The texts for values of this kind, of a file those that are read from it, and whether they
    /// are RULER's.
    pub(super) fn load(&self, value: Kind) -> Result<(NeedleTemplate, bool)> {
        Ok(match self {
            Self::Short => (NeedleTemplate::ember_of(value.noun()), false),
            Self::Ruler => (NeedleTemplate::ruler_of(value.noun()), true),
            Self::File(path) => (NeedleTemplate::read(&path.display().to_string())?, false),
        })
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

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        for (parameter, count) in
            [("keys", self.keys), ("values", self.values), ("queries", self.queries)]
        {
            at_least(Self::NAME, parameter, count, 1)?;
        }
        let (form, kinds) = (self.form.load(self.value_type)?, [self.key_type, self.value_type]);
        if matches!(self.form, NeedleForm::File(_))
            && (kinds != [Kind::Words, Kind::Numbers] || self.values * self.queries > 1)
        {
            return refuse(Self::NAME, "form", "a file's form is of one number under a word");
        }
        let scene = Scene::new(Self::NAME, form, kinds, &self.haystack)?;
        cells.iter().map(|cell| self.sample(&scene, cell)).collect()
    }
}

impl Needle {
    fn sample(&self, scene: &Scene, cell: &Cell<'_>) -> Result<Sample> {
        let keys = self.keys.max(self.queries);
        // The streams of `NeedleTask`, so that a run and `briquette needle` give the same prompts.
        let stream = |part: u64| {
            seed::rng(&[cell.seed, cell.length as u64, keys as u64, cell.sample as u64, part])
        };
        let mut choice = stream(0);
        let (needles, names) = scene.draw(cell, keys, self.values, &mut choice)?;
        let asked: Vec<&Pair> = needles[..self.queries].iter().collect();
        let turns = vec![scene.turn(cell, &asked)?];
        let context = scene.context(cell, &needles, &turns, names, stream(1), &mut choice)?;
        let axes = [("keys", keys), ("values", self.values), ("queries", self.queries)];
        Ok(cell.named(&axes, context, turns))
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
    suffix + &source.suffix()
}

#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) key: String,
    pub(super) values: Vec<String>,
}

/// How needles are written, and in what.
#[derive(Debug)]
pub(super) struct Scene {
    form: NeedleTemplate,
    /// Whether that is RULER's.
    is_ruler: bool,
    key: Kind,
    value: Kind,
    /// Whether the text comes in lines.
    in_lines: bool,
    /// `None` for a haystack of needles.
    haystack: Option<Haystack>,
}

impl Scene {
    pub(super) fn new(
        task: &'static str,
        (form, is_ruler): (NeedleTemplate, bool),
        [key, value]: [Kind; 2],
        source: &Source,
    ) -> Result<Self> {
        let haystack = match source {
            Source::Needles => None,
            source => Some(source.load(task)?),
        };
        Ok(Self { form, is_ruler, key, value, in_lines: source.in_lines(), haystack })
    }

    /// `many` answers are asked for.
    fn introduction(&self, many: bool) -> String {
        let noun = self.value.noun();
        match self.is_ruler && many {
            true => format!(
                "Some special magic {noun}s are hidden within the following text. Make sure to memorize it. I will \
                 quiz you about the {noun}s afterwards."
            ),
            false => self.form.introduction().0,
        }
    }

    fn needle(&self, key: &str, value: &str) -> String {
        let needle = self.form.needle(key, value);
        match self.is_ruler && self.in_lines {
            true => format!("\n{}", needle.trim_start()),
            false => needle,
        }
    }

    /// The question for all values of these keys. Of several answers it names the first.
    fn question_answer(&self, keys: &[&str], values: &[String]) -> QuestionAnswer {
        let (noun, keys) = (self.value.noun(), enumerate(keys));
        let answer = values.first().cloned().unwrap_or_default();
        if values.len() < 2 {
            return self.form.question_answer(&keys, &answer);
        }
        let again = match self.is_ruler {
            true => format!(" for {keys} mentioned in the provided text"),
            false => String::new(),
        };
        let question = format!(
            "\nWhat are all the special magic {noun}s for {keys} mentioned in the provided text? The special magic \
             {noun}s{again} are"
        );
        QuestionAnswer { question, answer }
    }

    /// Keys with their values, and names for the needles of the haystack.
    pub(super) fn draw(
        &self,
        cell: &Cell<'_>,
        keys: usize,
        values: usize,
        rng: &mut ChaCha8Rng,
    ) -> Result<(Vec<Pair>, Names)> {
        let Self { key, value, .. } = *self;
        let needles = keys.saturating_mul(values);
        if needles > cell.length {
            return Err(cell.too_short(needles));
        }
        let of = |kind, count| if kind == Kind::Words { count } else { 0 };
        let words = |keys: usize| of(key, keys) + of(value, keys * values);
        let further = match self.haystack {
            Some(_) => 0,
            // As many as short needles could be.
            None => {
                cell.length / cell.tokenizer.encode(&self.needle("a", "1"), false)?.len().max(1)
            }
        };
        let mut names = Names::new(cell.task, words(keys), words(further), rng)?;
        let mut pairs = Vec::with_capacity(keys);
        for _ in 0..keys {
            let key = names.draw(key, rng);
            let values = (0..values).map(|_| names.draw(value, rng)).collect();
            pairs.push(Pair { key, values });
        }
        Ok((pairs, names))
    }

    /// All values of these keys, asked for at once.
    pub(super) fn turn(&self, cell: &Cell<'_>, asked: &[&Pair]) -> Result<Turn> {
        let keys: Vec<&str> = asked.iter().map(|pair| pair.key.as_str()).collect();
        let references: Vec<String> =
            asked.iter().flat_map(|pair| pair.values.iter().cloned()).collect();
        let many = references.len() > 1;
        let QuestionAnswer { question, answer } = self.question_answer(&keys, &references);
        if !self.is_ruler && !many {
            return cell.exact_turn(&question, &answer);
        }
        let values = asked.iter().map(|pair| format!(" {}: {}", pair.key, pair.values.join(", ")));
        let right = values.collect::<Vec<_>>().join(",");
        // RULER generates 128 tokens.
        let least = if self.is_ruler { 128 } else { 16 };
        cell.list_turn(&question, references, &right, least)
    }

    /// The haystack with the needles in it, the first value of the first key at the depth. `text`
    /// chooses the haystack and `choice` the places of the other needles.
    pub(super) fn context(
        &self,
        cell: &Cell<'_>,
        needles: &[Pair],
        turns: &[Turn],
        mut names: Names,
        mut text: ChaCha8Rng,
        choice: &mut ChaCha8Rng,
    ) -> Result<Vec<u32>> {
        let tokenizer = cell.tokenizer;
        let many = turns.iter().map(|turn| turn.references.len()).sum::<usize>() > 1;
        let introduction = tokenizer.encode(&self.introduction(many), true)?;
        let written = needles
            .iter()
            .flat_map(|pair| pair.values.iter().map(|value| self.needle(&pair.key, value)));
        let inserts = encode_all(tokenizer, written)?;
        let hiding = Hiding {
            task: cell.task,
            length: cell.length,
            depth: cell.depth(),
            introduction: &introduction,
            inserts: &inserts,
            behind: turns.iter().map(|turn| turn.question.len() + turn.max_new_tokens).sum(),
        };
        match &self.haystack {
            // RULER's introduction ends without a line break: the text brings it.
            Some(haystack) => hiding.context(
                tokenizer,
                haystack.pieces_behind(self.form.line_break(), text),
                choice,
            ),
            None => {
                let needle = || {
                    let key = names.draw(self.key, &mut text);
                    let value = names.draw(self.value, &mut text);
                    Some(self.needle(&key, &value))
                };
                hiding.context(tokenizer, std::iter::from_fn(needle), choice)
            }
        }
    }
}
