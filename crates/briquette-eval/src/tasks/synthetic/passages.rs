//! Numbered passages: which one an excerpt is from, and how many there are without the repeated
//! ones.

use std::path::Path;

use briquette_models::Tokenizer;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Source, TaskSpec, both,
    cell::{Cell, Grid, at_least, refuse},
};
use crate::{
    Error, Result,
    metrics::Metric,
    tasks::{Question, Sample, Task, Turn, assemble, haystack::Haystack},
};

const RETRIEVAL: &str = "passage-retrieval";
const COUNT: &str = "passage-count";

/// Sentences of a passage.
const SENTENCES: std::ops::RangeInclusive<usize> = 4..=7;

/// Tokens of the last passage, at least. It is cut to fill the prompt.
const LEAST: usize = 40;

/// LongBench generates 32 tokens.
const MAX_NEW_TOKENS: usize = 32;

/// Passage retrieval in the structure of LongBench's `passage_retrieval_en` (Bai et al. 2023):
/// numbered passages, and the question which of them an excerpt is from. Theirs is an abstract of
/// the passage, which is not to be had without a model that writes it. Scored by
/// [`Metric::LongbenchRetrieval`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PassageRetrieval {
    /// Label in tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the question comes.
    #[serde(deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
    /// Tokens of prompt and answer.
    pub lengths: Vec<usize>,
    /// Start of the passage that the question quotes, in percent of the passages. Never the last
    /// one, which is cut.
    pub depths: Vec<u32>,
    /// Samples of each length and depth.
    pub samples: usize,
    /// Sentences of the excerpt, at most 4. The whole of the shortest passages.
    pub sentences: usize,
    /// Prose that passages are made of.
    pub haystack: Source,
}

impl Default for PassageRetrieval {
    fn default() -> Self {
        Self {
            label: None,
            ask: both(),
            lengths: vec![1024],
            depths: vec![0, 25, 50, 75, 100],
            samples: 2,
            sentences: 2,
            haystack: Source::BuiltIn,
        }
    }
}

impl TaskSpec for PassageRetrieval {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| label(RETRIEVAL, &self.haystack))
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }
}

impl Task for PassageRetrieval {
    fn longest(&self) -> Option<usize> {
        self.lengths.iter().copied().max()
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::HaystackUsedUp`], what
    /// [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        let Self { lengths, depths, samples, ask, sentences, .. } = self;
        let grid = Grid { task: RETRIEVAL, lengths, depths: Some(depths), samples: *samples, ask };
        let cells = grid.cells()?;
        at_least(RETRIEVAL, "sentences", *sentences, 1)?;
        if sentences > SENTENCES.start() {
            let most = SENTENCES.start();
            return refuse(RETRIEVAL, "sentences", format!("{sentences} given, at most {most}"));
        }
        let haystack = self.haystack.load_prose(RETRIEVAL)?;
        cells.iter().map(|cell| self.sample(tokenizer, &haystack, cell, seed)).collect()
    }
}

impl PassageRetrieval {
    fn sample(
        &self,
        tokenizer: &Tokenizer,
        haystack: &Haystack,
        cell: &Cell,
        seed: u64,
    ) -> Result<Sample> {
        let mut supply = Supply::new(RETRIEVAL, cell, haystack, seed);
        let target = supply.passage()?;
        let mut rng = cell.stream(seed, 2);
        let from = rng.random_range(0..=target.len() - self.sentences);
        let excerpt = target[from..from + self.sentences].join(" ");

        let question = tokenizer.encode(
            &format!(
                "\n\nThe following is an excerpt.\n\n{excerpt}\n\nPlease enter the number of the paragraph that the \
                 excerpt is from. The answer format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer \
                 is: "
            ),
            false,
        )?;
        let introduction = "Here are numbered paragraphs of a text, along with an excerpt. Please determine which \
                            paragraph the excerpt is from.";
        let introduction = tokenizer.encode(introduction, true)?;
        let fixed = introduction.len() + question.len() + MAX_NEW_TOKENS;
        let mut passages = Passages::new(tokenizer, cell, fixed)?;
        // The target as the second paragraph, and a last one.
        let needed = passages.encode(2, &target)?.len() + LEAST;
        if needed > passages.room {
            let (task, length) = (RETRIEVAL, cell.length);
            return Err(Error::PromptTooShort { task, length, fixed: fixed + needed });
        }
        let at = passages.room * cell.depth() as usize / 100;
        let mut asked = None;
        loop {
            let next = supply.passage()?;
            if asked.is_none() {
                let piece = passages.encode(passages.count + 2, &next)?.len();
                let own = passages.encode(passages.count + 1, &target)?.len();
                // As near to its depth as the passages allow, and before there is no room for it
                // any more.
                let near = passages.tokens.len() + piece / 2 >= at;
                if near || piece + own + 1 + LEAST > passages.left() {
                    passages.push(&target)?;
                    asked = Some(passages.count);
                }
            }
            if passages.is_last(&next)? {
                passages.fill(next, &mut supply)?;
                break;
            }
            passages.push(&next)?;
        }
        let found = passages.text.matches(&excerpt).count();
        if found != 1 {
            let reason = format!("the excerpt `{excerpt}` is in {found} paragraphs; take more");
            return refuse(RETRIEVAL, "sentences", reason);
        }
        let asked = asked.unwrap_or_default();
        Ok(Sample {
            id: cell.id(),
            axes: cell.axes(&[("passages", passages.count)]),
            context: [introduction, passages.tokens].concat(),
            turns: vec![turn(question, format!("Paragraph {asked}"), Metric::LongbenchRetrieval)],
        })
    }
}

/// Passage count in the structure of LongBench's `passage_count` (Bai et al. 2023): numbered
/// passages, some of which come again, and the question how many different ones there are. Scored
/// by [`Metric::LongbenchCount`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PassageCount {
    /// Label in tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When the question comes.
    #[serde(deserialize_with = "crate::tasks::question::one_or_more")]
    pub ask: Vec<Question>,
    /// Tokens of prompt and answer.
    pub lengths: Vec<usize>,
    /// Samples of each length.
    pub samples: usize,
    /// How likely a passage is one that came before, in percent, at most 90. The first and the last
    /// are new.
    pub repeated: u32,
    /// Prose that passages are made of.
    pub haystack: Source,
}

impl Default for PassageCount {
    fn default() -> Self {
        Self {
            label: None,
            ask: both(),
            lengths: vec![1024],
            samples: 4,
            repeated: 30,
            haystack: Source::BuiltIn,
        }
    }
}

impl TaskSpec for PassageCount {
    fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| label(COUNT, &self.haystack))
    }

    fn ask(&self) -> &[Question] {
        &self.ask
    }

    fn resolve(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }
}

impl Task for PassageCount {
    fn longest(&self) -> Option<usize> {
        self.lengths.iter().copied().max()
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::HaystackUsedUp`], what
    /// [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn samples(&self, tokenizer: &Tokenizer, seed: u64) -> Result<Vec<Sample>> {
        let Self { lengths, samples, ask, repeated, .. } = self;
        let grid = Grid { task: COUNT, lengths, depths: None, samples: *samples, ask };
        let cells = grid.cells()?;
        if *repeated > 90 {
            return refuse(COUNT, "repeated", format!("{repeated} % is above 90"));
        }
        let haystack = self.haystack.load_prose(COUNT)?;
        cells.iter().map(|cell| self.sample(tokenizer, &haystack, cell, seed)).collect()
    }
}

impl PassageCount {
    fn sample(
        &self,
        tokenizer: &Tokenizer,
        haystack: &Haystack,
        cell: &Cell,
        seed: u64,
    ) -> Result<Sample> {
        let mut supply = Supply::new(COUNT, cell, haystack, seed);
        let mut rng = cell.stream(seed, 2);
        let question = tokenizer.encode(
            "\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output format should \
             only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",
            false,
        )?;
        let introduction = "There are some paragraphs below sourced from a text. Some of them may be duplicates. Please \
                            carefully read these paragraphs and determine how many unique paragraphs there are after \
                            removing duplicates. In other words, how many non-repeating paragraphs are there in total?";
        let introduction = tokenizer.encode(introduction, true)?;
        let fixed = introduction.len() + question.len() + MAX_NEW_TOKENS;
        let mut passages = Passages::new(tokenizer, cell, fixed)?;
        if passages.room < LEAST {
            let (task, length) = (COUNT, cell.length);
            return Err(Error::PromptTooShort { task, length, fixed: fixed + LEAST });
        }
        let mut unique: Vec<Vec<String>> = Vec::new();
        loop {
            let again = rng.random_range(0..100) < self.repeated && !unique.is_empty();
            if again {
                let passage = &unique[rng.random_range(0..unique.len())];
                // A cut passage is no duplicate: where this one would be the last, a new one is.
                if !passages.is_last(passage)? {
                    passages.push(passage)?;
                    continue;
                }
            }
            let next = supply.passage()?;
            if passages.is_last(&next)? {
                passages.fill(next, &mut supply)?;
                break;
            }
            passages.push(&next)?;
            unique.push(next);
        }
        let answer = unique.len() + 1;
        Ok(Sample {
            id: cell.id(),
            axes: cell.axes(&[("passages", passages.count)]),
            context: [introduction, passages.tokens].concat(),
            turns: vec![turn(question, answer.to_string(), Metric::LongbenchCount)],
        })
    }
}

fn label(task: &str, source: &Source) -> String {
    source.label().map_or_else(|| task.to_owned(), |source| format!("{task}-{source}"))
}

fn turn(question: Vec<u32>, answer: String, metric: Metric) -> Turn {
    Turn {
        question,
        references: vec![answer],
        classes: Vec::new(),
        metrics: metric.into(),
        tokens: None,
        max_new_tokens: MAX_NEW_TOKENS,
        stop: Vec::new(),
    }
}

/// Sentences, none of them twice.
struct Supply<'a> {
    task: &'static str,
    length: usize,
    haystack: &'a Haystack,
    sentences: Box<dyn Iterator<Item = String> + 'a>,
    sizes: ChaCha8Rng,
}

impl<'a> Supply<'a> {
    fn new(task: &'static str, cell: &Cell, haystack: &'a Haystack, seed: u64) -> Self {
        let pieces = haystack.pieces(cell.stream(seed, 1)).take(haystack.len());
        // A passage is one line, whatever line breaks a file has.
        let line = |piece: String| piece.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            task,
            length: cell.length,
            haystack,
            sentences: Box::new(pieces.map(line)),
            sizes: cell.stream(seed, 0),
        }
    }

    fn sentence(&mut self) -> Result<String> {
        self.sentences.next().ok_or_else(|| Error::HaystackUsedUp {
            task: self.task,
            length: self.length,
            haystack: self.haystack.name().to_owned(),
            sentences: self.haystack.len(),
        })
    }

    fn passage(&mut self) -> Result<Vec<String>> {
        let count = self.sizes.random_range(SENTENCES);
        (0..count).map(|_| self.sentence()).collect()
    }
}

/// Numbered passages that fill a prompt to the token.
struct Passages<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens they are to have.
    room: usize,
    tokens: Vec<u32>,
    text: String,
    count: usize,
}

impl<'a> Passages<'a> {
    /// `fixed` are the tokens of everything else.
    fn new(tokenizer: &'a Tokenizer, cell: &Cell, fixed: usize) -> Result<Self> {
        let room = assemble::room(cell.task, cell.length, fixed)?;
        Ok(Self { tokenizer, room, tokens: Vec::new(), text: String::new(), count: 0 })
    }

    fn left(&self) -> usize {
        self.room - self.tokens.len()
    }

    fn encode(&self, number: usize, sentences: &[String]) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode(&written(number, sentences), false)?)
    }

    /// Whether no other would find room behind this one.
    fn is_last(&self, sentences: &[String]) -> Result<bool> {
        Ok(self.encode(self.count + 1, sentences)?.len() + LEAST > self.left())
    }

    fn push(&mut self, sentences: &[String]) -> Result<()> {
        self.count += 1;
        self.tokens.extend(self.encode(self.count, sentences)?);
        self.text += &written(self.count, sentences);
        Ok(())
    }

    /// The last one, made longer or cut.
    fn fill(&mut self, sentences: Vec<String>, supply: &mut Supply<'_>) -> Result<()> {
        self.push(&sentences)?;
        while self.tokens.len() < self.room {
            let further = format!(" {}", supply.sentence()?);
            self.tokens.extend(self.tokenizer.encode(&further, false)?);
            self.text += &further;
        }
        self.tokens.truncate(self.room);
        Ok(())
    }
}

fn written(number: usize, sentences: &[String]) -> String {
    format!("\n\nParagraph {number}: {}", sentences.join(" "))
}
