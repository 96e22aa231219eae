//! Numbered passages: which one an excerpt is from, and how many there are without the repeated
//! ones.

use std::path::Path;

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
        format!("{}{}", Self::NAME, self.haystack.suffix())
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        let (sentences, most) = (self.sentences, *SENTENCES.start());
        at_least(Self::NAME, "sentences", sentences, 1)?;
        if sentences > most {
            return refuse(Self::NAME, "sentences", format!("{sentences} given, at most {most}"));
        }
        let haystack = self.haystack.load_prose(Self::NAME)?;
        cells.iter().map(|cell| self.sample(&haystack, cell)).collect()
    }
}

impl PassageRetrieval {
    fn sample(&self, haystack: &Haystack, cell: &Cell<'_>) -> Result<Sample> {
        let mut supply = Supply::new(cell, haystack);
        let target = supply.passage()?;
        let mut rng = cell.stream(2);
        let from = rng.random_range(0..=target.len() - self.sentences);
        let excerpt = target[from..from + self.sentences].join(" ");

        let question = format!(
            "\n\nThe following is an excerpt.\n\n{excerpt}\n\nPlease enter the number of the paragraph that the \
             excerpt is from. The answer format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer \
             is: "
        );
        let introduction = "Here are numbered paragraphs of a text, along with an excerpt. Please determine which \
                            paragraph the excerpt is from.";
        let mut passages = Passages::new(cell, introduction, &question)?;
        // The target as the second paragraph, and a last one.
        let needed = passages.encode(2, &target)?.len() + LEAST;
        if needed > passages.room {
            return Err(passages.too_short(needed));
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
        let answer = format!("Paragraph {}", asked.unwrap_or_default());
        Ok(passages.sample(answer, Metric::LongbenchRetrieval))
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
        format!("{}{}", Self::NAME, self.haystack.suffix())
    }

    fn resolve_paths(&mut self, base: &Path) {
        self.haystack.resolve(base);
    }

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>> {
        if self.repeated > 90 {
            return refuse(Self::NAME, "repeated", format!("{} % is above 90", self.repeated));
        }
        let haystack = self.haystack.load_prose(Self::NAME)?;
        cells.iter().map(|cell| self.sample(&haystack, cell)).collect()
    }
}

impl PassageCount {
    fn sample(&self, haystack: &Haystack, cell: &Cell<'_>) -> Result<Sample> {
        let mut supply = Supply::new(cell, haystack);
        let mut rng = cell.stream(2);
        let question = "\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output \
                        format should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ";
        let introduction = "There are some paragraphs below sourced from a text. Some of them may be duplicates. Please \
                            carefully read these paragraphs and determine how many unique paragraphs there are after \
                            removing duplicates. In other words, how many non-repeating paragraphs are there in total?";
        let mut passages = Passages::new(cell, introduction, question)?;
        if passages.room < LEAST {
            return Err(passages.too_short(LEAST));
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
        Ok(passages.sample((unique.len() + 1).to_string(), Metric::LongbenchCount))
    }
}

/// Sentences, none of them twice.
struct Supply<'a> {
    cell: Cell<'a>,
    haystack: &'a Haystack,
    sentences: Box<dyn Iterator<Item = String> + 'a>,
    sizes: ChaCha8Rng,
}

impl<'a> Supply<'a> {
    fn new(cell: &Cell<'a>, haystack: &'a Haystack) -> Self {
        let pieces = haystack.pieces(cell.stream(1)).take(haystack.len());
        // A passage is one line, whatever line breaks a file has.
        let line = |piece: String| piece.split_whitespace().collect::<Vec<_>>().join(" ");
        let (sentences, sizes) = (Box::new(pieces.map(line)), cell.stream(0));
        Self { cell: *cell, haystack, sentences, sizes }
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
    cell: Cell<'a>,
    introduction: Vec<u32>,
    question: Vec<u32>,
    /// Tokens they are to have.
    room: usize,
    tokens: Vec<u32>,
    text: String,
    count: usize,
}

impl<'a> Passages<'a> {
    fn new(cell: &Cell<'a>, introduction: &str, question: &str) -> Result<Self> {
        let introduction = cell.tokenizer.encode(introduction, true)?;
        let question = cell.tokenizer.encode(question, false)?;
        let fixed = introduction.len() + question.len() + MAX_NEW_TOKENS;
        let room = assemble::room(cell.task, cell.length, fixed)?;
        let (cell, tokens, text) = (*cell, Vec::new(), String::new());
        Ok(Self { cell, introduction, question, room, tokens, text, count: 0 })
    }

    /// Says that passages of so many tokens have no room.
    fn too_short(&self, needed: usize) -> Error {
        self.cell.too_short(self.cell.length - self.room + needed)
    }

    fn left(&self) -> usize {
        self.room - self.tokens.len()
    }

    fn encode(&self, number: usize, sentences: &[String]) -> Result<Vec<u32>> {
        Ok(self.cell.tokenizer.encode(&written(number, sentences), false)?)
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
            self.tokens.extend(self.cell.tokenizer.encode(&further, false)?);
            self.text += &further;
        }
        self.tokens.truncate(self.room);
        Ok(())
    }

    fn sample(self, answer: String, metric: Metric) -> Sample {
        let turn = Turn::new(self.question, vec![answer], metric, MAX_NEW_TOKENS);
        let context = [self.introduction, self.tokens].concat();
        self.cell.named(&[("passages", self.count)], context, vec![turn])
    }
}

fn written(number: usize, sentences: &[String]) -> String {
    format!("\n\nParagraph {number}: {}", sentences.join(" "))
}
