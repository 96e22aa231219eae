//! Chains of variables: the first of a chain is a number, each other one is the one before it.
//!
//! An answer goes back along the chain, `VAR c = VAR b = VAR a = 12345`: each step is one thing
//! found again, as needles are. Where the number had to follow at once, so that several steps fell
//! to one token, the model learnt to guess among the numbers and no more (the README has what was
//! seen).

use rand::{Rng, RngExt, seq::SliceRandom};

use super::{Drawn, END, Keys, Likeness, Pen, Tasks};
use crate::data::BEGIN;

/// Digits of a variable's number.
const DIGITS: usize = 5;

/// The tokens a variable takes in [`Tasks::chains`], its line and its question, about.
const ROOM: usize = 36;
/// The most variables in a chain.
pub(super) const LONGEST: usize = 4;

/// Chains, and the number that each variable in them has.
pub(super) struct Chains<'a> {
    /// The lines, each chain's in its order, the chains among each other in any.
    pub(super) lines: Vec<Vec<u32>>,
    /// The variable of each line.
    pub(super) keys: Vec<&'a Vec<u32>>,
    /// The text that follows the name of each variable in an answer: the way back to a number.
    pub(super) answers: Vec<Vec<u32>>,
    /// The line of each chain's end.
    pub(super) ends: Vec<usize>,
}

impl Tasks {
    /// One chain of each size; with `alike`, keys may begin with the same token.
    pub(super) fn write_chains<'a>(
        &self,
        rng: &mut impl Rng,
        words: &'a Keys,
        sizes: &[usize],
        alike: bool,
        likeness: Likeness,
    ) -> Chains<'a> {
        let p = &self.phrase;
        let mut turns: Vec<usize> =
            sizes.iter().enumerate().flat_map(|(chain, size)| vec![chain; *size]).collect();
        turns.shuffle(rng);
        let keys = words.draw(rng, turns.len(), alike);
        let numbers = self.numbers(rng, likeness, sizes.len(), DIGITS);
        let mut ends: Vec<Option<usize>> = vec![None; sizes.len()];
        let mut lines = Vec::with_capacity(turns.len());
        let mut answers: Vec<Vec<u32>> = Vec::with_capacity(turns.len());
        for (line, chain) in turns.iter().enumerate() {
            let (set_to, further) = match ends[*chain].replace(line) {
                None => ([&p.is[..], &numbers[*chain]].concat(), &[][..]),
                Some(source) => ([&p.is_variable[..], keys[source]].concat(), &answers[source][..]),
            };
            answers.push([&set_to, further].concat());
            lines.push([&p.variable, keys[line], &set_to, &p.dot].map(|x| &x[..]).concat());
        }
        Chains { lines, keys, answers, ends: ends.into_iter().flatten().collect() }
    }

    /// Nothing but lines of chains, all variables asked for in another order.
    pub(super) fn chains(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let p = &self.phrase;
        let most = (length / ROOM).clamp(2, self.train.words.len());
        let mut left = rng.random_range((most / 3).max(2)..=most);
        let mut sizes = Vec::new();
        while left > 0 {
            let size = rng.random_range(1..=LONGEST).min(left);
            sizes.push(size);
            left -= size;
        }
        let likeness = Likeness::draw(rng);
        let chains = self.write_chains(rng, &self.train, &sizes, true, likeness);
        let mut pen = Pen::default();
        pen.write(&[BEGIN], 0.0);
        for line in &chains.lines {
            pen.write(line, 0.0);
        }
        let long: bool = rng.random();
        let each = |i: usize| {
            let key = chains.keys[i];
            let question = if long {
                [&p.ask_variable, key, &p.answer_variable, key].map(|x| &x[..]).concat()
            } else {
                [&p.newline, &p.question, &p.of_variable, key].map(|x| &x[..]).concat()
            };
            (question, &chains.answers[i][..])
        };
        let end: &[u32] = if long { &[END] } else { &[] };
        pen.ask_all(rng, length, chains.lines.len(), end, each).done()
    }
}
