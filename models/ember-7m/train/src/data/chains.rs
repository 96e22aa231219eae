//! Chains of variables: the first of a chain is a number, each other one is the one before it.
//!
//! An answer goes back along the chain, `VAR c = VAR b = VAR a = 12345`: each step is one thing
//! found again, as needles are. Where the number had to follow at once, so that several steps fell
//! to one token, the model learnt to guess among the numbers and no more.

use rand::{Rng, RngExt, seq::SliceRandom};

use super::{
    END,
    numbers::likeness,
    tasks::{ASK_VARIABLE, ASKED_VARIABLE, Drawn, Tasks, begin},
};

/// Digits of a variable's number.
const DIGITS: usize = 5;
/// The tokens a variable takes in [`Tasks::chains`], its line and its question, about.
const ROOM: usize = 36;
/// The most variables in a chain.
pub const LONGEST: usize = 4;

/// Chains, and the number that each variable in them has.
pub struct Chains<'a> {
    /// The lines, each chain's in its order, the chains among each other in any.
    pub lines: Vec<Vec<u32>>,
    /// The variable of each line.
    pub keys: Vec<&'a Vec<u32>>,
    /// The text that follows the name of each variable in an answer: the way back to a number.
    pub answers: Vec<Vec<u32>>,
}

impl Tasks {
    /// One chain of each size.
    pub fn write_chains(&self, rng: &mut impl Rng, sizes: &[usize], likeness: i32) -> Chains<'_> {
        let mut turns: Vec<usize> =
            sizes.iter().enumerate().flat_map(|(chain, size)| vec![chain; *size]).collect();
        turns.shuffle(rng);
        let keys = self.keys.draw(rng, turns.len());
        let numbers = self.numbers(rng, likeness, sizes.len(), DIGITS);
        let mut ends: Vec<Option<usize>> = vec![None; sizes.len()];
        let mut lines = Vec::with_capacity(turns.len());
        let mut answers: Vec<Vec<u32>> = Vec::with_capacity(turns.len());
        for (line, chain) in turns.iter().enumerate() {
            let (set_to, further) = match ends[*chain].replace(line) {
                None => ([self.say(" = "), &numbers[*chain]].concat(), &[][..]),
                Some(source) => ([self.say(" = VAR"), keys[source]].concat(), &answers[source][..]),
            };
            answers.push([&set_to, further].concat());
            lines.push([self.say("\nVAR"), keys[line], &set_to, self.say(".")].concat());
        }
        Chains { lines, keys, answers }
    }

    /// Nothing but lines of chains, all variables asked for in another order.
    pub fn chains(&self, rng: &mut impl Rng, length: usize) -> Drawn {
        let most = (length / ROOM).clamp(2, self.keys.words.len());
        let mut left = rng.random_range((most / 3).max(2)..=most);
        let mut sizes = Vec::new();
        while left > 0 {
            let size = rng.random_range(1..=LONGEST).min(left);
            sizes.push(size);
            left -= size;
        }
        let likeness = likeness(rng);
        let chains = self.write_chains(rng, &sizes, likeness);
        let mut drawn = begin();
        for line in &chains.lines {
            drawn.write(line, 0.0);
        }
        let long: bool = rng.random();
        let each = |i: usize| {
            let key = chains.keys[i];
            let question = if long {
                [self.say(ASK_VARIABLE), key, self.say(ASKED_VARIABLE), key].concat()
            } else {
                [self.say("\n"), self.say("Question:"), self.say(" VAR"), key].concat()
            };
            (question, &chains.answers[i][..])
        };
        let end: &[u32] = if long { &[END] } else { &[] };
        drawn.ask_all(rng, length, chains.lines.len(), end, each)
    }
}
