//! Measuring on words and text never trained on.
//!
//! By teacher forcing: the right answer is fed, and the likeliest token read off before each of its
//! digits and before the end token. An answer that is right throughout this way is the one that
//! greedy decoding writes, since every token had the right ones before it; of the others greedy
//! decoding may find fewer digits, having gone wrong. Or by greedy decoding itself, through
//! `briquette-models`.

use anyhow::{Context, Result, ensure};
use briquette::Policy;
use briquette_models::{GenerateOptions, Model, generate_batch};
use serde::Serialize;

use crate::{
    data::{Drawn, END, Tasks},
    model::{Batch, Body, Weights},
};

/// Tokens that go through the model at once.
const TOKENS: usize = 65_536;
/// Tokens of prompts that are continued at once.
const PROMPT_TOKENS: usize = 8192;

/// Shares of right answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    /// Answers right in every digit.
    pub exact: f64,
    /// Share of all answers that are right in every digit and end there.
    pub ended: f64,
    /// Right digits. With teacher forcing the right ones before them are fed; in greedy decoding
    /// they are those written.
    pub digits: f64,
    /// Samples.
    pub samples: usize,
}

/// A kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// One of so many hidden numbers.
    Needle(usize),
    /// A variable at the end of a chain.
    Variable,
}

/// `samples` questions in prompts of `length` tokens, the answers included.
///
/// # Errors
/// If the length does not hold the question, or there are no samples.
pub(crate) fn questions(
    tasks: &Tasks,
    question: Question,
    length: usize,
    samples: usize,
    seed: u64,
) -> Result<Vec<Drawn>> {
    ensure!(samples > 0, "0 samples measure nothing");
    let kind = match question {
        Question::Needle(hidden) => hidden as u64,
        Question::Variable => u64::MAX,
    };
    let draw = |sample| {
        let mut rng = crate::data::generator(&[seed, kind, length as u64, sample as u64]);
        match question {
            Question::Needle(hidden) => tasks.measured_needle(&mut rng, length, hidden),
            Question::Variable => tasks.measured_variable(&mut rng, length),
        }
    };
    let drawn: Option<Vec<_>> = (0..samples).map(draw).collect();
    drawn.with_context(|| format!("{length} tokens do not hold {question:?}"))
}

/// Number of questions that are answered right with the right answer fed.
///
/// # Errors
/// If the device fails.
pub(crate) fn accuracy(body: &Body, weights: &Weights, questions: &[Drawn]) -> Result<Accuracy> {
    let mut tally = Tally::default();
    for drawn in chunks(questions, TOKENS) {
        let batch = batch(drawn)?;
        // A token is predicted at the place before it.
        let places = drawn.iter().enumerate().flat_map(|(row, drawn)| {
            let answer = drawn.answer.start..=drawn.answer.end;
            answer.map(move |at| row * batch.length + at - 1)
        });
        let places: Vec<usize> = places.collect();
        let mut said =
            body.predictions(weights, &batch, &places)?.into_iter().map(|token| token as u32);
        for drawn in drawn {
            let said: Vec<u32> = said.by_ref().take(drawn.answer.len() + 1).collect();
            let (answer, end) = said.split_at(drawn.answer.len().min(said.len()));
            tally.add(drawn, answer, end == [END]);
        }
    }
    Ok(tally.accuracy())
}

/// Number of questions that are answered right by greedy decoding with the full cache.
///
/// # Errors
/// What the model refuses.
pub(crate) fn greedy(model: &Model, questions: &[Drawn]) -> Result<Accuracy> {
    let mut tally = Tally::default();
    for drawn in chunks(questions, PROMPT_TOKENS) {
        let prompts: Vec<&[u32]> =
            drawn.iter().map(|drawn| &drawn.tokens[..drawn.answer.start]).collect();
        let longest = drawn.iter().map(|drawn| drawn.answer.len()).max().unwrap_or(0);
        let options =
            GenerateOptions { max_new_tokens: longest + 1, stop: vec![END], ..Default::default() };
        let mut cache = model.cache(Policy::full())?;
        let (said, _) = generate_batch(model, &prompts, &mut cache, &options, |_, _| {})?;
        for (drawn, said) in drawn.iter().zip(said) {
            let count = drawn.answer.len();
            let ended = said.stopped && said.tokens.len() == count;
            tally.add(drawn, &said.tokens[..count.min(said.tokens.len())], ended);
        }
    }
    Ok(tally.accuracy())
}

#[derive(Default)]
struct Tally {
    exact: usize,
    ended: usize,
    digits: usize,
    all_digits: usize,
    samples: usize,
}

impl Tally {
    fn add(&mut self, drawn: &Drawn, said: &[u32], ended: bool) {
        let answer = &drawn.tokens[drawn.answer.clone()];
        self.digits += answer.iter().zip(said).filter(|(a, b)| a == b).count();
        self.all_digits += answer.len();
        self.exact += usize::from(answer == said);
        self.ended += usize::from(answer == said && ended);
        self.samples += 1;
    }

    fn accuracy(&self) -> Accuracy {
        let share = |count: usize, of: usize| count as f64 / of as f64;
        Accuracy {
            exact: share(self.exact, self.samples),
            ended: share(self.ended, self.samples),
            digits: share(self.digits, self.all_digits),
            samples: self.samples,
        }
    }
}

/// So many questions at a time that they have about so many tokens.
fn chunks(questions: &[Drawn], tokens: usize) -> impl Iterator<Item = &[Drawn]> {
    let length = questions.first().map_or(1, |drawn| drawn.tokens.len());
    questions.chunks((tokens / length).max(1))
}

/// Nats per token of the held-out text, in its first contexts of that length.
///
/// # Errors
/// If the text is shorter than one context.
pub(crate) fn held_out(
    body: &Body,
    weights: &Weights,
    tasks: &Tasks,
    length: usize,
    contexts: usize,
) -> Result<f64> {
    let drawn = tasks.held_out(length, contexts);
    ensure!(!drawn.is_empty(), "the held-out text is shorter than {length} tokens");
    let (mut sum, mut count) = (0.0, 0.0);
    for drawn in drawn.chunks((TOKENS / length).max(1)) {
        let batch = batch(drawn)?;
        for (loss, weight) in body.token_losses(weights, &batch)?.iter().zip(&batch.weights) {
            sum += f64::from(*loss) * f64::from(*weight);
            count += f64::from(*weight);
        }
    }
    Ok(sum / count)
}

fn batch(drawn: &[Drawn]) -> Result<Batch> {
    let sequences: Vec<_> =
        drawn.iter().map(|drawn| (drawn.tokens.clone(), drawn.weights.clone())).collect();
    Batch::new(&sequences)
}

#[cfg(test)]
mod tests;
