//! Chains of variables: the first of a chain is a number, each other one is the one before it.
//!
//! To say what a variable at a chain's end is, its line must be found, then the line of what it is set to, and so on. A model
//! that finds the numbers but cannot follow a chain guesses among them, and stays there if it only ever sees a few chains in
//! prose, one question each. Where the lines stand close, many chains beside each other, every variable asked for,
//! guessing costs much and following one step is seen often.

use rand::{Rng, RngExt, seq::SliceRandom};

use super::{Drawn, END, Keys, LINE_ANSWER, Likeness, Pen, Tasks};
use crate::data::BEGIN;

/// Digits of a variable's number.
const DIGITS: usize = 5;

/// The tokens a variable takes in [`Tasks::chains`], its line and its question, about.
const ROOM: usize = 24;

/// Chains, and what each variable in them comes to.
pub(super) struct Chains<'a> {
    /// The lines, each chain's in its order, the chains among each other in any.
    pub(super) lines: Vec<Vec<u32>>,
    /// The variable of each line.
    pub(super) keys: Vec<&'a Vec<u32>>,
    /// What it comes to.
    pub(super) numbers: Vec<Vec<u32>>,
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
        for (line, chain) in turns.iter().enumerate() {
            let set_to = match ends[*chain].replace(line) {
                None => [&p.is[..], &numbers[*chain]].concat(),
                Some(source) => [&p.is_variable[..], keys[source]].concat(),
            };
            lines.push([&p.variable, keys[line], &set_to, &p.dot].map(|x| &x[..]).concat());
        }
        let numbers = turns.iter().map(|chain| numbers[*chain].clone()).collect();
        Chains { lines, keys, numbers, ends: ends.into_iter().flatten().collect() }
    }

    /// Nothing but lines of chains of at most `longest` variables, all asked for in another order.
    pub(super) fn chains(&self, rng: &mut impl Rng, length: usize, longest: usize) -> Drawn {
        let p = &self.phrase;
        let most = (length / ROOM).clamp(2, self.train.words.len());
        let mut left = rng.random_range((most / 3).max(2)..=most);
        let mut sizes = Vec::new();
        while left > 0 {
            let size = rng.random_range(1..=longest.max(1)).min(left);
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
        let mut order: Vec<usize> = (0..chains.lines.len()).collect();
        order.shuffle(rng);
        for i in order {
            let key = chains.keys[i];
            let question = if long {
                [&p.ask_variable, key, &p.answer_variable].map(|x| &x[..]).concat()
            } else {
                [&p.variable, key, &p.colon].map(|x| &x[..]).concat()
            };
            let ended = usize::from(long);
            if pen.tokens.len() + question.len() + DIGITS + ended > length {
                break;
            }
            pen.write(&question, 0.0);
            pen.answer(&chains.numbers[i], LINE_ANSWER);
            pen.write(&[END][..ended], LINE_ANSWER);
        }
        pen.tokens.truncate(length);
        pen.weights.truncate(length);
        pen.done()
    }
}
