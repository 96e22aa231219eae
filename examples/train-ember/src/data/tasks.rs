mod chains;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use briquette_models::Tokenizer;
use rand::{Rng, RngExt, seq::SliceRandom, seq::index};
use serde::{Deserialize, Serialize};

use self::chains::{Chains, LONGEST};
use super::{BEGIN, Corpus, END, PAD, Words, numbers::Likeness};

/// Frequency of each task, in any unit.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Mixture {
    /// Running text.
    pub prose: f64,
    /// One to four numbers hidden in prose, one asked for.
    pub needle: f64,
    /// Many numbers hidden in prose, many asked for in another order.
    pub needles: f64,
    /// Nothing but lines of keys and numbers, all asked for in another order.
    pub lines: f64,
    /// A segment and the same again.
    pub copy: f64,
    /// Chains of variables hidden in prose, some asked for.
    pub variables: f64,
    /// Nothing but chains of variables, all asked for in another order.
    pub chains: f64,
}

impl Default for Mixture {
    fn default() -> Self {
        Self {
            prose: 0.34,
            needle: 0.14,
            needles: 0.24,
            lines: 0.08,
            copy: 0.03,
            variables: 0.11,
            chains: 0.06,
        }
    }
}

/// A sequence to train on or to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// The weight of each token's prediction in the loss.
    pub weights: Vec<f32>,
    /// Place of the last answer, without the end token behind it.
    pub answer: std::ops::Range<usize>,
}

// Weights in the loss. What cannot be predicted weighs nothing: needles, keys, random numbers.
const PROSE: f32 = 1.0;
const QUESTION: f32 = 1.0;
const COPIED: f32 = 3.0;
const LINE_ANSWER: f32 = 10.0;
/// Weight of one answer in a sequence; of several each has less, but all together more.
const ANSWER: f32 = 20.0;
const ONE_OF_MANY: f32 = 10.0;

/// Digits of a hidden number.
const DIGITS: usize = 7;

/// Writes sequences in tokens.
#[derive(Debug)]
pub struct Tasks {
    corpus: Arc<Corpus>,
    train: Keys,
    test: Keys,
    digits: [u32; 10],
    phrase: Phrases,
}

/// Words as tokens, each with a space before it.
#[derive(Debug)]
struct Keys {
    words: Vec<Vec<u32>>,
    /// Words that begin with the same token, several each.
    alike: Vec<Vec<usize>>,
}

#[derive(Debug)]
struct Phrases {
    introduction: Vec<u32>,
    needle: Vec<u32>,
    ask: Vec<u32>,
    answer: Vec<u32>,
    colon: Vec<u32>,
    dot: Vec<u32>,
    newline: Vec<u32>,
    question: Vec<u32>,
    variable: Vec<u32>,
    is: Vec<u32>,
    is_variable: Vec<u32>,
    ask_variable: Vec<u32>,
    answer_variable: Vec<u32>,
    of_variable: Vec<u32>,
}

/// A sequence in the making.
#[derive(Default)]
struct Pen {
    tokens: Vec<u32>,
    weights: Vec<f32>,
    answer: std::ops::Range<usize>,
}

impl Pen {
    fn write(&mut self, tokens: &[u32], weight: f32) {
        self.tokens.extend(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }

    fn answer(&mut self, tokens: &[u32], weight: f32) {
        self.answer = self.tokens.len()..self.tokens.len() + tokens.len();
        self.write(tokens, weight);
    }

    /// Goes on with what another pen has written; its answer is the one.
    fn append(mut self, tail: Self) -> Self {
        let start = self.tokens.len();
        self.answer = start + tail.answer.start..start + tail.answer.end;
        self.tokens.extend(tail.tokens);
        self.weights.extend(tail.weights);
        self
    }

    /// Asks for each of `count` in another order, as many as fit, with `end` behind every answer.
    fn ask_all<'a>(
        mut self,
        rng: &mut impl Rng,
        length: usize,
        count: usize,
        end: &[u32],
        each: impl Fn(usize) -> (Vec<u32>, &'a [u32]),
    ) -> Self {
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(rng);
        for i in order {
            let (question, answer) = each(i);
            if self.tokens.len() + question.len() + answer.len() + end.len() > length {
                break;
            }
            self.write(&question, 0.0);
            self.answer(answer, LINE_ANSWER);
            self.write(end, LINE_ANSWER);
        }
        self.tokens.truncate(length);
        self.weights.truncate(length);
        self
    }

    fn done(self) -> Drawn {
        Drawn { tokens: self.tokens, weights: self.weights, answer: self.answer }
    }
}

impl Tasks {
    /// Prepares what all sequences share.
    ///
    /// # Errors
    /// If the tokenizer fails, a digit has not a token of its own, there are fewer than 32 words of
    /// either sort, or a word is of both.
    pub fn new(corpus: Arc<Corpus>) -> Result<Self> {
        let tokenizer = &corpus.tokenizer;
        let encode = |text: &str| tokenizer.encode(text, false);
        for (id, token) in
            [(BEGIN, "<|begin_of_text|>"), (END, "<|end_of_text|>"), (PAD, "<|pad|>")]
        {
            ensure!(
                tokenizer.token_id(token) == Some(id),
                "the tokenizer does not have {token} as its token {id}"
            );
        }
        let mut digits = [0; 10];
        for (value, digit) in digits.iter_mut().enumerate() {
            let tokens = encode(&value.to_string())?;
            ensure!(tokens.len() == 1, "the digit {value} has {} tokens, not one", tokens.len());
            *digit = tokens[0];
        }
        let phrase = Phrases {
            introduction: encode(
                "\nSome special magic numbers are hidden within the following text. Make sure to memorize them. I \
                 will quiz you about the numbers afterwards.\n",
            )?,
            needle: encode("\nOne of the special magic numbers is")?,
            ask: encode("\nWhat is the special magic number for")?,
            answer: encode(" mentioned in the provided text? The special magic number is")?,
            colon: encode(":")?,
            dot: encode(".")?,
            newline: encode("\n")?,
            question: encode("Question:")?,
            variable: encode("\nVAR")?,
            is: encode(" = ")?,
            is_variable: encode(" = VAR")?,
            ask_variable: encode("\nQuestion: What is the value of VAR")?,
            answer_variable: encode("? Answer: VAR")?,
            of_variable: encode(" VAR")?,
        };
        let Words { train, test } = &corpus.words;
        if let Some(word) =
            train.iter().collect::<HashSet<_>>().intersection(&test.iter().collect()).next()
        {
            bail!("{word} is among the words to train on and among those to measure");
        }
        let train = Keys::new(tokenizer, &corpus.words.train).context("words to train on")?;
        let test = Keys::new(tokenizer, &corpus.words.test).context("words to measure")?;
        Ok(Self { corpus, train, test, digits, phrase })
    }

    /// The text and the words.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// A sequence to train on, `length` tokens with its padding.
    pub fn draw(&self, rng: &mut impl Rng, length: usize, mixture: &Mixture) -> Drawn {
        let Mixture { prose, needle, needles, lines, copy, variables, chains } = *mixture;
        let all = prose + needle + needles + lines + copy + variables + chains;
        let mut at = rng.random::<f64>() * all;
        let mut next = |share: f64| {
            at -= share;
            at < 0.0
        };
        let drawn = if next(prose) {
            Some(self.prose(rng, length))
        } else if next(needle) {
            let hidden = rng.random_range(1..=4);
            self.needles(rng, length, &self.train, &self.corpus.train, hidden, 1, None)
        } else if next(needles) {
            let most = (length / 40).clamp(3, 24);
            let hidden = rng.random_range(2..=most);
            // What fits behind the hidden ones; half of the time all of it.
            let fits = (length.saturating_sub(40 + 21 * hidden) / 36).clamp(1, hidden);
            let asked = if rng.random() { fits } else { rng.random_range(1..=fits) };
            self.needles(rng, length, &self.train, &self.corpus.train, hidden, asked, None)
        } else if next(copy) {
            Some(self.copy(rng, length))
        } else if next(variables) {
            self.variables(rng, length, &self.train, &self.corpus.train, None)
        } else if next(chains) {
            Some(self.chains(rng, length))
        } else {
            None
        };
        // Lines fit any length.
        let mut drawn = drawn.unwrap_or_else(|| self.lines(rng, length));
        drawn.tokens.resize(length, PAD);
        drawn.weights.resize(length, 0.0);
        drawn
    }

    /// A question about one of `hidden` random numbers, on words and text never trained on; `None`
    /// if the length does not hold it. The sequence ends with the answer and the end token.
    pub fn measured_needle(
        &self,
        rng: &mut impl Rng,
        length: usize,
        hidden: usize,
    ) -> Option<Drawn> {
        let random = Some(Likeness::Random);
        self.needles(rng, length, &self.test, &self.corpus.held_out, hidden, 1, random)
    }

    /// A question about a variable at the end of a chain, on words and text never trained on.
    pub fn measured_variable(&self, rng: &mut impl Rng, length: usize) -> Option<Drawn> {
        self.variables(rng, length, &self.test, &self.corpus.held_out, Some(Likeness::Random))
    }

    /// Contexts of the text never trained on, from its start.
    pub fn held_out(&self, length: usize, count: usize) -> Vec<Drawn> {
        let text = self.corpus.held_out.chunks_exact(length - 1).take(count);
        text.map(|text| {
            let mut pen = Pen::default();
            pen.write(&[BEGIN], 0.0);
            pen.write(&wide(text), 1.0);
            pen.done()
        })
        .collect()
    }

    fn prose(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        pen.write(&running(rng, &self.corpus.train, length - 1), PROSE);
        pen.done()
    }

    #[allow(clippy::too_many_arguments)]
    fn needles(
        &self,
        rng: &mut impl Rng,
        length: usize,
        words: &Keys,
        text: &[u16],
        hidden: usize,
        asked: usize,
        likeness: Option<Likeness>,
    ) -> Option<Drawn> {
        let p = &self.phrase;
        let alike = likeness.is_none();
        let keys = words.draw(rng, hidden, alike);
        let likeness = likeness.unwrap_or_else(|| Likeness::draw(rng));
        let numbers = self.numbers(rng, likeness, hidden, DIGITS);
        let pieces: Vec<Vec<u32>> = keys
            .iter()
            .zip(&numbers)
            .map(|(key, number)| {
                [&p.needle, *key, &p.colon, number, &p.dot].map(|x| &x[..]).concat()
            })
            .collect();
        let weight = if asked == 1 { ANSWER } else { ONE_OF_MANY };
        let mut tail = Pen::default();
        for i in index::sample(rng, hidden, asked) {
            let question = [&p.ask, keys[i], &p.answer, keys[i], &p.colon].map(|x| &x[..]).concat();
            tail.write(&question, QUESTION);
            tail.answer(&numbers[i], weight);
            tail.write(&[END], weight);
        }
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        pen.write(&p.introduction, 0.0);
        let room = length.checked_sub(pen.tokens.len() + tail.tokens.len())?;
        hide(rng, &mut pen, text, &pieces, room)?;
        Some(pen.append(tail).done())
    }

    fn lines(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let p = &self.phrase;
        let digits = rng.random_range(3..=DIGITS);
        let most = (length.saturating_sub(200) / (9 + digits)).clamp(2, self.train.words.len());
        let count = rng.random_range((most / 4).max(2)..=most);
        let keys = self.train.draw(rng, count, true);
        let likeness = Likeness::draw(rng);
        let numbers = self.numbers(rng, likeness, count, digits);
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        for (key, number) in keys.iter().zip(&numbers) {
            for part in [&p.newline, *key, &p.colon, number] {
                pen.write(part, 0.0);
            }
        }
        let each = |i: usize| {
            let question = [&p.newline, &p.question, keys[i], &p.colon].map(|x| &x[..]).concat();
            (question, &numbers[i][..])
        };
        pen.ask_all(rng, length, count, &[], each).done()
    }

    fn copy(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let most = length / 2 - 1;
        let count = rng.random_range((most / 4).max(1)..=most);
        let vocabulary = self.corpus.tokenizer.vocab_size() as u32;
        let segment = if rng.random() {
            (0..count).map(|_| rng.random_range(PAD + 1..vocabulary)).collect()
        } else {
            running(rng, &self.corpus.train, count)
        };
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        pen.write(&segment, 0.0);
        pen.write(&[END], 0.0);
        pen.write(&segment, COPIED);
        pen.done()
    }

    fn variables(
        &self,
        rng: &mut impl Rng,
        length: usize,
        words: &Keys,
        text: &[u16],
        likeness: Option<Likeness>,
    ) -> Option<Drawn> {
        let p = &self.phrase;
        let measured = likeness.is_some();
        // Measured is always the same: three variables in one chain, two in the other, the end of
        // either asked for.
        let sizes: Vec<usize> = if measured {
            vec![3, 2]
        } else {
            let most = (length / 100).clamp(1, 4);
            (0..rng.random_range(1..=most)).map(|_| rng.random_range(1..=LONGEST)).collect()
        };
        let likeness = likeness.unwrap_or_else(|| Likeness::draw(rng));
        let Chains { lines, keys, answers, ends } =
            self.write_chains(rng, words, &sizes, !measured, likeness);
        let asked: Vec<usize> = if measured {
            vec![ends[rng.random_range(0..ends.len())]]
        } else {
            let asked = rng.random_range(1..=lines.len());
            index::sample(rng, lines.len(), asked).into_vec()
        };
        let weight = if asked.len() == 1 { ANSWER } else { ONE_OF_MANY };
        let mut tail = Pen::default();
        for i in asked {
            let question =
                [&p.ask_variable, keys[i], &p.answer_variable, keys[i]].map(|x| &x[..]).concat();
            tail.write(&question, 0.0);
            tail.answer(&answers[i], weight);
            tail.write(&[END], weight);
        }
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        let room = length.checked_sub(1 + tail.tokens.len())?;
        hide(rng, &mut pen, text, &lines, room)?;
        Some(pen.append(tail).done())
    }

    fn numbers(
        &self,
        rng: &mut impl Rng,
        likeness: Likeness,
        count: usize,
        digits: usize,
    ) -> Vec<Vec<u32>> {
        let numbers = likeness.numbers(rng, count, digits).into_iter();
        numbers
            .map(|number| number.into_iter().map(|digit| self.digits[usize::from(digit)]).collect())
            .collect()
    }
}

impl Keys {
    fn new(tokenizer: &Tokenizer, words: &[String]) -> Result<Self> {
        ensure!(words.len() >= 32, "{} words are too few, 32 are needed", words.len());
        let words = words
            .iter()
            .map(|word| tokenizer.encode(&format!(" {word}"), false))
            .collect::<Result<Vec<_>, _>>()?;
        let mut alike: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, word) in words.iter().enumerate() {
            alike.entry(word[0]).or_default().push(index);
        }
        let mut alike: Vec<_> = alike.into_values().filter(|group| group.len() >= 4).collect();
        alike.sort();
        Ok(Self { words, alike })
    }

    /// Different words; with `alike` sometimes such that begin with the same token.
    fn draw(&self, rng: &mut impl Rng, count: usize, alike: bool) -> Vec<&Vec<u32>> {
        let mut chosen: Vec<usize> = Vec::with_capacity(count);
        if alike && !self.alike.is_empty() && rng.random_bool(0.3) {
            let group = &self.alike[rng.random_range(0..self.alike.len())];
            let some = index::sample(rng, group.len(), count.min(group.len()));
            chosen.extend(some.into_iter().map(|i| group[i]));
        }
        for i in index::sample(rng, self.words.len(), self.words.len().min(2 * count)) {
            if chosen.len() < count && !chosen.contains(&i) {
                chosen.push(i);
            }
        }
        chosen.shuffle(rng);
        chosen.into_iter().map(|i| &self.words[i]).collect()
    }
}

/// Prose with the pieces put in, in order, at random places: `length` tokens with them. `None` if
/// they do not fit.
fn hide(
    rng: &mut impl Rng,
    pen: &mut Pen,
    text: &[u16],
    pieces: &[Vec<u32>],
    length: usize,
) -> Option<()> {
    let room = length.checked_sub(pieces.iter().map(Vec::len).sum())?;
    let prose = running(rng, text, room);
    let mut places: Vec<usize> = pieces.iter().map(|_| rng.random_range(0..=room)).collect();
    places.sort_unstable();
    let mut last = 0;
    for (place, piece) in places.into_iter().zip(pieces) {
        pen.write(&prose[last..place], PROSE);
        pen.write(piece, 0.0);
        last = place;
    }
    pen.write(&prose[last..], PROSE);
    Some(())
}

/// `length` tokens from anywhere in a text, or its end and its start if it is shorter.
fn running(rng: &mut impl Rng, text: &[u16], length: usize) -> Vec<u32> {
    let starts = text.len().saturating_sub(length).max(1);
    let start = rng.random_range(0..starts);
    text.iter().cycle().skip(start).take(length).map(|token| u32::from(*token)).collect()
}

fn wide(tokens: &[u16]) -> Vec<u32> {
    tokens.iter().map(|token| u32::from(*token)).collect()
}

#[cfg(test)]
mod tests;
