//! Numbered passages: which one an excerpt is from, and how many there are without the repeated
//! ones.

use std::path::Path;

use briquette_models::Tokenizer;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    Source,
    cell::{Cell, at_least, refuse},
    synthetic_task::{Family, synthetic_task},
};
use crate::{
    Error, Result,
    metrics::Metric,
    tasks::{Sample, Turn, assemble, haystack::Haystack},
};

/// Sentences of a passage.
const SENTENCES: std::ops::RangeInclusive<usize> = 4..=7;

/// Tokens of the last passage, at least. It is cut to fill the prompt.
const LEAST: usize = 40;

/// LongBench generates 32 tokens.
const MAX_NEW_TOKENS: usize = 32;

synthetic_task! {
    /// Passage retrieval in the structure of LongBench's `passage_retrieval_en` (Bai et al. 2023):
    /// numbered passages, and the question which of them an excerpt is from. Theirs is an abstract
    /// of the passage, which is not to be had without a model that writes it. Scored by
    /// [`Metric::LongbenchRetrieval`]. A depth is where the quoted passage begins; it is never the
    /// last one, which is cut.
    pub struct PassageRetrieval: 2 samples at depths {
        /// Sentences of the excerpt, at most 4. The whole of the shortest passages.
        pub sentences: usize = 2,
        /// Prose that passages are made of.
        pub haystack: Source = Source::BuiltIn,
    }
}

impl Family for PassageRetrieval {
    const NAME: &'static str = "passage-retrieval";

    fn default_label(&self) -> String {
        label(Self::NAME, &self.haystack)
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::HaystackUsedUp`], what
    /// [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn make(&self, tokenizer: &Tokenizer, cells: &[Cell], seed: u64) -> Result<Vec<Sample>> {
        let (sentences, most) = (self.sentences, *SENTENCES.start());
        at_least(Self::NAME, "sentences", sentences, 1)?;
        if sentences > most {
            return refuse(Self::NAME, "sentences", format!("{sentences} given, at most {most}"));
        }
        let haystack = self.haystack.load_prose(Self::NAME)?;
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
        let mut supply = Supply::new(cell, haystack, seed);
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
            return Err(cell.too_short(fixed + needed));
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
            return refuse(Self::NAME, "sentences", reason);
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

synthetic_task! {
    /// Passage count in the structure of LongBench's `passage_count` (Bai et al. 2023): numbered
    /// passages, some of which come again, and the question how many different ones there are.
    /// Scored by [`Metric::LongbenchCount`].
    pub struct PassageCount: 4 samples {
        /// How likely a passage is one that came before, in percent, at most 90. The first and the
        /// last are new.
        pub repeated: u32 = 30,
        /// Prose that passages are made of.
        pub haystack: Source = Source::BuiltIn,
    }
}

impl Family for PassageCount {
    const NAME: &'static str = "passage-count";

    fn default_label(&self) -> String {
        label(Self::NAME, &self.haystack)
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }

    /// # Errors
    /// [`Error::TaskParameter`], [`Error::PromptTooShort`], [`Error::HaystackUsedUp`], what
    /// [`Haystack::from_dir`] refuses, and [`Error::Model`] if the tokenizer fails.
    fn make(&self, tokenizer: &Tokenizer, cells: &[Cell], seed: u64) -> Result<Vec<Sample>> {
        if self.repeated > 90 {
            return refuse(Self::NAME, "repeated", format!("{} % is above 90", self.repeated));
        }
        let haystack = self.haystack.load_prose(Self::NAME)?;
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
        let mut supply = Supply::new(cell, haystack, seed);
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
            return Err(cell.too_short(fixed + LEAST));
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
    cell: Cell,
    haystack: &'a Haystack,
    sentences: Box<dyn Iterator<Item = String> + 'a>,
    sizes: ChaCha8Rng,
}

impl<'a> Supply<'a> {
    fn new(cell: &Cell, haystack: &'a Haystack, seed: u64) -> Self {
        let pieces = haystack.pieces(cell.stream(seed, 1)).take(haystack.len());
        // A passage is one line, whatever line breaks a file has.
        let line = |piece: String| piece.split_whitespace().collect::<Vec<_>>().join(" ");
        Self {
            cell: *cell,
            haystack,
            sentences: Box::new(pieces.map(line)),
            sizes: cell.stream(seed, 0),
        }
    }

    fn sentence(&mut self) -> Result<String> {
        self.sentences.next().ok_or_else(|| Error::HaystackUsedUp {
            task: self.cell.task,
            length: self.cell.length,
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
