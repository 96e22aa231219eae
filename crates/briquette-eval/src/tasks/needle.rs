//! Needle in a haystack: a number hidden in prose, asked for at the end.
//!
//! ```text
//! Some special magic numbers are hidden within the following text. …
//! … prose …
//! One of the special magic numbers is countess:8174205. … prose …
//! What is the special magic number for countess mentioned in the provided text? … is countess:
//! ```

use std::ops::Range;

use briquette_models::Tokenizer;
use rand::seq::index;

use crate::{
    Error, Result,
    tasks::{
        assemble::{self, Hiding},
        haystack::Haystack,
        needle_template::QuestionAnswer,
        seed,
    },
};

/// Digits of a number.
pub(crate) const DIGITS: usize = 7;

/// Words a number may be hidden under. The embedded model never saw one of them in a needle.
pub fn words() -> impl Iterator<Item = &'static str> {
    include_str!("../../assets/needle_words.txt").lines()
}

/// Which prompt to build. The same place always gives the same prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Tokens of the prompt and its answer together, so that the model's context can be used to the
    /// end.
    pub length: usize,
    /// Depth of the needle that the question names, in percent of the haystack: 0 is its start.
    pub depth: u32,
    /// Needles in the haystack. The others lie at random depths.
    pub needles: usize,
    /// Number of the sample. Samples that differ in their depth only share everything else.
    pub sample: usize,
}

/// A prompt with its answer, in tokens.
#[derive(Clone, Debug)]
pub struct NeedlePrompt {
    /// Its place in the grid.
    pub place: Place,
    /// Introduction, haystack and needles.
    pub context: Vec<u32>,
    /// Tokens behind the context.
    pub question: Vec<u32>,
    /// The right answer.
    pub answer: Vec<u32>,
    /// The word asked for.
    pub word: String,
    /// The answer as text.
    pub number: String,
}

impl NeedlePrompt {
    /// Span of the answer in the context; `None` if the tokenizer cuts the number there in
    /// another way.
    pub fn answer_span(&self) -> Option<Range<usize>> {
        let tokens = self.answer.len().max(1);
        let start = self.context.windows(tokens).position(|window| window == self.answer)?;
        Some(start..start + tokens)
    }

    /// How many of the tokens `said` are right, each at its place.
    pub fn right(&self, said: &[u32]) -> usize {
        self.answer.iter().zip(said).filter(|(a, b)| a == b).count()
    }
}

/// Builds prompts for one tokenizer and one haystack, in the [form](super::NeedleTemplate) that
/// goes with it.
#[derive(Debug)]
pub struct NeedleTask<'a> {
    tokenizer: &'a Tokenizer,
    haystack: &'a Haystack,
    seed: u64,
    /// The token that begins a text, if the tokenizer has one, and the introduction.
    introduction: Vec<u32>,
}

impl<'a> NeedleTask<'a> {
    /// Prepares the parts all prompts share.
    ///
    /// # Errors
    /// [`Error::Model`] if the tokenizer fails.
    pub fn new(tokenizer: &'a Tokenizer, haystack: &'a Haystack, seed: u64) -> Result<Self> {
        let (introduction, special_tokens) = haystack.form().introduction();
        let introduction = tokenizer.encode(&introduction, special_tokens)?;
        Ok(Self { tokenizer, haystack, seed, introduction })
    }

    /// The prompt for a place: it and its answer have as many tokens as the place asks for, the
    /// haystack is cut to fit.
    ///
    /// Needles are inserted between two sentences, the one asked for at the boundary nearest to its
    /// depth.
    ///
    /// # Errors
    /// [`Error::PromptTooShort`], [`Error::TooManyNeedles`], [`Error::Setting`] without a needle or
    /// for a depth above 100, and [`Error::Model`] if the tokenizer fails.
    pub fn prompt(&self, place: Place) -> Result<NeedlePrompt> {
        let Place { length, depth, needles, sample } = place;
        if needles == 0 {
            return Err(Error::Setting { name: "needles", reason: "at least 1 is needed".into() });
        }
        if depth > 100 {
            return Err(Error::Setting {
                name: "depths",
                reason: format!("{depth} % is above 100"),
            });
        }
        let stream =
            |part: u64| seed::rng(&[self.seed, length as u64, needles as u64, sample as u64, part]);
        let (mut choice, text) = (stream(0), stream(1));

        let words: Vec<&str> = words().collect();
        if needles > words.len() {
            return Err(Error::TooManyNeedles { needles, words: words.len() });
        }
        let words = index::sample(&mut choice, words.len(), needles).into_iter().map(|i| words[i]);
        let hidden: Vec<(&str, String)> =
            words.map(|word| (word, assemble::digits(&mut choice, DIGITS))).collect();
        let (word, number) = &hidden[0];
        let form = self.haystack.form();
        let written = hidden.iter().map(|(word, number)| form.needle(word, number));
        let inserts = assemble::encode_all(self.tokenizer, written)?;
        let QuestionAnswer { question: asked, answer } = form.question_answer(word, number);
        let question = self.tokenizer.encode(&asked, false)?;
        let answer = assemble::continuation(self.tokenizer, &asked, &question, &answer)?;
        let hiding = Hiding {
            task: "needle",
            length,
            depth,
            introduction: &self.introduction,
            inserts: &inserts,
            behind: question.len() + answer.len(),
        };
        let pieces = self.haystack.pieces_behind(form.line_break(), text);
        let context = hiding.context(self.tokenizer, pieces, &mut choice)?;
        Ok(NeedlePrompt {
            place,
            context,
            question,
            answer,
            word: (*word).to_owned(),
            number: number.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::LazyLock};

    use super::*;
    use crate::{tasks::NeedleTemplate, testing};

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(testing::tokenizer);
    static HAYSTACK: LazyLock<Haystack> = LazyLock::new(Haystack::built_in);

    fn task() -> NeedleTask<'static> {
        NeedleTask::new(&TOKENIZER, &HAYSTACK, 7).unwrap()
    }

    fn place() -> Place {
        Place { length: 512, depth: 50, needles: 1, sample: 0 }
    }

    /// Holds prompts to those of the committed tables: their seeds must keep meaning the same.
    #[test]
    fn prompts_are_those_of_the_committed_tables() {
        let task = task();
        let hash = |place| {
            let prompt = task.prompt(place).unwrap();
            let tokens = prompt.context.iter().chain(&prompt.question).chain(&prompt.answer);
            seed::hash(tokens.flat_map(|token| token.to_le_bytes()))
        };
        let places = [
            place(),
            Place { depth: 0, needles: 4, ..place() },
            Place { length: 1024, depth: 100, needles: 2, sample: 3 },
        ];
        assert_eq!(
            places.map(hash),
            [0x6647_5f38_e12c_f4a7, 0xb747_9756_d560_4513, 0x721d_44d7_bfc7_7515]
        );
    }

    #[test]
    fn words_are_distinct() {
        assert_eq!(words().count(), 64);
        assert_eq!(words().collect::<HashSet<_>>().len(), 64);
    }

    #[test]
    fn prompt_has_the_trained_form_and_the_exact_length() {
        let (task, form) = (task(), NeedleTemplate::ember());
        for length in [128, 256, 511, 2048, 4096] {
            for depth in [0, 25, 50, 75, 100] {
                let prompt = task.prompt(Place { length, depth, ..place() }).unwrap();
                let parts = [&prompt.context, &prompt.question, &prompt.answer];
                assert_eq!(parts.map(Vec::len).iter().sum::<usize>(), length);
                assert_eq!(prompt.context[0], 0);
                assert_eq!(prompt.answer.len(), DIGITS);
                let context = TOKENIZER.decode(&prompt.context).unwrap();
                let NeedlePrompt { word, number, .. } = &prompt;
                assert!(context.starts_with(&form.introduction().0), "{context}");
                assert_eq!(context.matches(&form.needle(word, number)).count(), 1, "{context}");
                let asked = form.question_answer(word, number).question;
                assert_eq!(TOKENIZER.decode(&prompt.question).unwrap(), asked);
                assert_eq!(&TOKENIZER.decode(&prompt.answer).unwrap(), number);
            }
        }
    }

    #[test]
    fn pieces_meet_at_token_boundaries_of_the_whole_text() {
        let task = task();
        let prompt = task.prompt(Place { needles: 3, ..place() }).unwrap();
        let pieces = [&prompt.context[..], &prompt.question, &prompt.answer].concat();
        let text = TOKENIZER.decode(&pieces).unwrap();
        let whole = TOKENIZER.encode(&text, true).unwrap();
        // The haystack ends in the middle of a sentence, maybe of a word: compare around the
        // needles.
        let cut = prompt.context.len() - 8;
        assert_eq!(whole[..cut], pieces[..cut]);
        // What the model was trained on is built of these pieces.
        let encode = |text: &str| TOKENIZER.encode(text, false).unwrap();
        let mut trained = encode("\nOne of the special magic numbers is");
        trained.extend(encode(" countess"));
        for piece in ":8174205.".chars() {
            trained.extend(encode(&piece.to_string()));
        }
        let form = NeedleTemplate::ember();
        assert_eq!(encode(&form.needle("countess", "8174205")), trained);
        let trained = [
            "\nWhat is the special magic number for",
            " countess",
            " mentioned in the provided text? The special magic number is",
            " countess",
            ":",
        ];
        let asked = form.question_answer("countess", "8174205").question;
        assert_eq!(encode(&asked), trained.map(encode).concat());
    }

    #[test]
    fn depth_moves_the_needle_and_nothing_else() {
        let task = task();
        let at = |depth| {
            let prompt = task.prompt(Place { length: 1024, depth, ..place() }).unwrap();
            let marker = TOKENIZER.encode("\nOne of the special magic numbers is", false).unwrap();
            let found = prompt.context.windows(marker.len()).position(|w| w == marker).unwrap();
            (found - task.introduction.len(), prompt)
        };
        let room = at(100).0;
        for depth in [0, 30, 60, 90, 100] {
            let (found, prompt) = at(depth);
            assert!(
                found.abs_diff(room * depth as usize / 100) <= 32,
                "{depth} %: {found} of {room}"
            );
            assert_eq!(prompt.number, at(0).1.number);
            let sorted = |mut tokens: Vec<u32>| {
                tokens.sort_unstable();
                tokens
            };
            assert_eq!(sorted(prompt.context), sorted(at(0).1.context));
        }
        assert_eq!(at(0).0, 0);
    }

    #[test]
    fn samples_differ_and_several_needles_are_hidden() {
        let task = task();
        let mut numbers = HashSet::new();
        for sample in 0..8 {
            let prompt = task.prompt(Place { needles: 4, sample, ..place() }).unwrap();
            let text = TOKENIZER.decode(&prompt.context).unwrap();
            assert_eq!(text.matches("One of the special magic numbers is ").count(), 4);
            numbers.insert(prompt.number);
        }
        assert_eq!(numbers.len(), 8);
    }

    #[test]
    fn the_answer_is_found_in_its_needle() {
        let task = task();
        let prompt = task.prompt(Place { needles: 2, ..place() }).unwrap();
        let span = prompt.answer_span().unwrap();
        let (word, number) = (&prompt.word, &prompt.number);
        assert_eq!(&TOKENIZER.decode(&prompt.context[span.clone()]).unwrap(), number);
        let before = TOKENIZER.decode(&prompt.context[..span.start]).unwrap();
        assert!(before.ends_with(&format!("{word}:")), "{before}");
        assert_eq!(prompt.right(&prompt.answer), DIGITS);
        assert_eq!(prompt.right(&prompt.answer[..3]), 3);
        assert_eq!(prompt.right(&[]), 0);
    }

    #[test]
    fn what_cannot_be_built_is_refused_with_numbers() {
        let task = task();
        let refuse = |place| task.prompt(place).unwrap_err().to_string();
        assert!(refuse(Place { length: 60, ..place() }).contains("60 tokens"));
        assert!(refuse(Place { needles: 65, ..place() }).contains("65 needles"));
        assert!(refuse(Place { needles: 0, ..place() }).contains("needles"));
        assert!(refuse(Place { depth: 101, ..place() }).contains("101 %"));
    }
}
