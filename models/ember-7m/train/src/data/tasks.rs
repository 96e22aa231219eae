//! Sequences: prose, and retrieval tasks written into it.

use std::collections::HashMap;

use anyhow::{Result, ensure};
use briquette_models::Tokenizer;
use rand::{
    Rng, RngExt,
    seq::{SliceRandom, index},
};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::{
    BEGIN, Corpus, END, PAD,
    chains::{Chains, LONGEST},
    numbers::{self, likeness},
};

/// Frequencies, in any unit, of: running text; one to four numbers hidden in prose, one asked for;
/// many numbers in prose, many asked for in another order; nothing but lines of keys and numbers,
/// all asked for; a segment and the same again; chains of variables in prose, some asked for;
/// nothing but chains of variables, all asked for.
pub type Mixture = [f64; 7];

/// A sequence to train on.
#[derive(Default)]
pub struct Drawn {
    pub tokens: Vec<u32>,
    /// The weight of each token's prediction in the loss.
    pub weights: Vec<f32>,
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

// The wording of the tasks.
const INTRODUCTION: &str = "\nSome special magic numbers are hidden within the following text. \
     Make sure to memorize them. I will quiz you about the numbers afterwards.\n";
const NEEDLE: &str = "\nOne of the special magic numbers is";
const ASK: &str = "\nWhat is the special magic number for";
const ASKED: &str = " mentioned in the provided text? The special magic number is";
pub const ASK_VARIABLE: &str = "\nQuestion: What is the value of VAR";
pub const ASKED_VARIABLE: &str = "? Answer: VAR";
/// All that [`Tasks::say`] says.
const WORDING: [&str; 14] = [
    INTRODUCTION,
    NEEDLE,
    ASK,
    ASKED,
    ASK_VARIABLE,
    ASKED_VARIABLE,
    ":",
    ".",
    "\n",
    "Question:",
    "\nVAR",
    " = ",
    " = VAR",
    " VAR",
];

/// Writes sequences in tokens.
pub struct Tasks {
    pub corpus: Corpus,
    pub keys: Keys,
    digits: [u32; 10],
    wording: HashMap<&'static str, Vec<u32>>,
}

/// Words as tokens, each with a space before it.
pub struct Keys {
    pub words: Vec<Vec<u32>>,
    /// Words that begin with the same token, several each.
    alike: Vec<Vec<usize>>,
}

impl Drawn {
    pub fn write(&mut self, tokens: &[u32], weight: f32) {
        self.tokens.extend(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }

    /// Asks for each of `count` in another order, as many as fit, with `end` behind every answer.
    pub fn ask_all<'a>(
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
            self.write(answer, LINE_ANSWER);
            self.write(end, LINE_ANSWER);
        }
        self.tokens.truncate(length);
        self.weights.truncate(length);
        self
    }
}

impl Tasks {
    pub fn new(corpus: Corpus) -> Result<Self> {
        let tokenizer = &corpus.tokenizer;
        for (id, token) in
            [(BEGIN, "<|begin_of_text|>"), (END, "<|end_of_text|>"), (PAD, "<|pad|>")]
        {
            ensure!(tokenizer.token_id(token) == Some(id), "{token} is not token {id}");
        }
        let mut digits = [0; 10];
        for (value, digit) in digits.iter_mut().enumerate() {
            let tokens = tokenizer.encode(&value.to_string(), false)?;
            ensure!(tokens.len() == 1, "the digit {value} has {} tokens, not one", tokens.len());
            *digit = tokens[0];
        }
        let encoded = WORDING.map(|text| Ok((text, tokenizer.encode(text, false)?)));
        let wording = encoded.into_iter().collect::<Result<_>>()?;
        let keys = Keys::new(tokenizer, &corpus.words.train)?;
        Ok(Self { corpus, keys, digits, wording })
    }

    /// The tokens of one of the task's texts.
    pub fn say(&self, text: &str) -> &[u32] {
        &self.wording[text]
    }

    /// A sequence to train on, `length` tokens with its padding.
    pub fn draw(&self, rng: &mut impl Rng, length: usize, mixture: &Mixture) -> Drawn {
        let [prose, needle, needles, lines, copy, variables, chains] = *mixture;
        let all = prose + needle + needles + lines + copy + variables + chains;
        let mut at = rng.random::<f64>() * all;
        let mut next = |share: f64| {
            at -= share;
            at < 0.0
        };
        let drawn = if next(prose) {
            let mut drawn = begin();
            drawn.write(&running(rng, &self.corpus.text, length - 1), PROSE);
            Some(drawn)
        } else if next(needle) {
            let hidden = rng.random_range(1..=4);
            self.needles(rng, length, hidden, 1)
        } else if next(needles) {
            let most = (length / 40).clamp(3, 24);
            let hidden = rng.random_range(2..=most);
            // What fits behind the hidden ones; half of the time all of it.
            let fits = (length.saturating_sub(40 + 21 * hidden) / 36).clamp(1, hidden);
            let asked = if rng.random() { fits } else { rng.random_range(1..=fits) };
            self.needles(rng, length, hidden, asked)
        } else if next(copy) {
            Some(self.copy(rng, length))
        } else if next(variables) {
            self.variables(rng, length)
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

    /// Numbers hidden in prose, some asked for behind it; `None` if the length does not hold them.
    fn needles(
        &self,
        rng: &mut impl Rng,
        length: usize,
        hidden: usize,
        asked: usize,
    ) -> Option<Drawn> {
        let keys = self.keys.draw(rng, hidden);
        let likeness = likeness(rng);
        let numbers = self.numbers(rng, likeness, hidden, DIGITS);
        let piece = |(&key, number): (&&Vec<u32>, &Vec<u32>)| {
            [self.say(NEEDLE), key, self.say(":"), number, self.say(".")].concat()
        };
        let pieces: Vec<Vec<u32>> = keys.iter().zip(&numbers).map(piece).collect();
        let weight = if asked == 1 { ANSWER } else { ONE_OF_MANY };
        let mut tail = Drawn::default();
        for i in index::sample(rng, hidden, asked) {
            let (key, colon) = (keys[i], self.say(":"));
            tail.write(&[self.say(ASK), key, self.say(ASKED), key, colon].concat(), QUESTION);
            tail.write(&numbers[i], weight);
            tail.write(&[END], weight);
        }
        let mut drawn = begin();
        drawn.write(self.say(INTRODUCTION), 0.0);
        self.hide(rng, drawn, &pieces, tail, length)
    }

    fn lines(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let digits = rng.random_range(3..=DIGITS);
        let most = (length.saturating_sub(200) / (9 + digits)).clamp(2, self.keys.words.len());
        let count = rng.random_range((most / 4).max(2)..=most);
        let keys = self.keys.draw(rng, count);
        let likeness = likeness(rng);
        let numbers = self.numbers(rng, likeness, count, digits);
        let (newline, colon) = (self.say("\n"), self.say(":"));
        let mut drawn = begin();
        for (&key, number) in keys.iter().zip(&numbers) {
            drawn.write(&[newline, key, colon, number].concat(), 0.0);
        }
        let question = self.say("Question:");
        let each = |i: usize| ([newline, question, keys[i], colon].concat(), &numbers[i][..]);
        drawn.ask_all(rng, length, count, &[], each)
    }

    fn copy(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let most = length / 2 - 1;
        let count = rng.random_range((most / 4).max(1)..=most);
        let vocabulary = self.corpus.tokenizer.vocab_size() as u32;
        let segment = if rng.random() {
            (0..count).map(|_| rng.random_range(PAD + 1..vocabulary)).collect()
        } else {
            running(rng, &self.corpus.text, count)
        };
        let mut drawn = begin();
        drawn.write(&segment, 0.0);
        drawn.write(&[END], 0.0);
        drawn.write(&segment, COPIED);
        drawn
    }

    /// Chains of variables hidden in prose, some asked for behind it.
    fn variables(&self, rng: &mut impl Rng, length: usize) -> Option<Drawn> {
        let most = (length / 100).clamp(1, 4);
        let sizes: Vec<usize> =
            (0..rng.random_range(1..=most)).map(|_| rng.random_range(1..=LONGEST)).collect();
        let likeness = likeness(rng);
        let Chains { lines, keys, answers } = self.write_chains(rng, &sizes, likeness);
        let asked = rng.random_range(1..=lines.len());
        let asked = index::sample(rng, lines.len(), asked).into_vec();
        let weight = if asked.len() == 1 { ANSWER } else { ONE_OF_MANY };
        let mut tail = Drawn::default();
        for i in asked {
            let (ask, asked) = (self.say(ASK_VARIABLE), self.say(ASKED_VARIABLE));
            tail.write(&[ask, keys[i], asked, keys[i]].concat(), 0.0);
            tail.write(&answers[i], weight);
            tail.write(&[END], weight);
        }
        self.hide(rng, begin(), &lines, tail, length)
    }

    /// Goes on with prose with the pieces put in, in order, at random places, and with `tail`:
    /// `length` tokens in all. `None` if they do not fit.
    fn hide(
        &self,
        rng: &mut impl Rng,
        mut drawn: Drawn,
        pieces: &[Vec<u32>],
        tail: Drawn,
        length: usize,
    ) -> Option<Drawn> {
        let room = length.checked_sub(drawn.tokens.len() + tail.tokens.len())?;
        let room = room.checked_sub(pieces.iter().map(Vec::len).sum())?;
        let prose = running(rng, &self.corpus.text, room);
        let mut places: Vec<usize> = pieces.iter().map(|_| rng.random_range(0..=room)).collect();
        places.sort_unstable();
        let mut last = 0;
        for (place, piece) in places.into_iter().zip(pieces) {
            drawn.write(&prose[last..place], PROSE);
            drawn.write(piece, 0.0);
            last = place;
        }
        drawn.write(&prose[last..], PROSE);
        drawn.tokens.extend(tail.tokens);
        drawn.weights.extend(tail.weights);
        Some(drawn)
    }

    pub fn numbers(
        &self,
        rng: &mut impl Rng,
        likeness: i32,
        count: usize,
        digits: usize,
    ) -> Vec<Vec<u32>> {
        let token = |digit: u8| self.digits[usize::from(digit)];
        let numbers = numbers::numbers(rng, likeness, count, digits).into_iter();
        numbers.map(|number| number.into_iter().map(token).collect()).collect()
    }
}

impl Keys {
    fn new(tokenizer: &Tokenizer, words: &[String]) -> Result<Self> {
        ensure!(words.len() >= 32, "{} words are too few, 32 are needed", words.len());
        let encode = |word: &String| tokenizer.encode(&format!(" {word}"), false);
        let words = words.iter().map(encode).collect::<Result<Vec<_>, _>>()?;
        let mut alike: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, word) in words.iter().enumerate() {
            alike.entry(word[0]).or_default().push(index);
        }
        let mut alike: Vec<_> = alike.into_values().filter(|group| group.len() >= 4).collect();
        alike.sort();
        Ok(Self { words, alike })
    }

    /// Different words, sometimes such that begin with the same token.
    pub fn draw(&self, rng: &mut impl Rng, count: usize) -> Vec<&Vec<u32>> {
        let mut chosen: Vec<usize> = Vec::with_capacity(count);
        if !self.alike.is_empty() && rng.random_bool(0.3) {
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

/// A generator of its own for every combination of parts.
pub fn generator(parts: [u64; 4]) -> ChaCha8Rng {
    let mut seed = [0; 32];
    for (bytes, part) in seed.chunks_exact_mut(8).zip(parts) {
        bytes.copy_from_slice(&part.to_le_bytes());
    }
    ChaCha8Rng::from_seed(seed)
}

/// A sequence of the begin token.
pub fn begin() -> Drawn {
    Drawn { tokens: vec![BEGIN], weights: vec![0.0] }
}

/// `length` tokens from anywhere in a text, or its end and its start if it is shorter.
fn running(rng: &mut impl Rng, text: &[u16], length: usize) -> Vec<u32> {
    let starts = text.len().saturating_sub(length).max(1);
    let start = rng.random_range(0..starts);
    text.iter().cycle().skip(start).take(length).map(|token| u32::from(*token)).collect()
}
