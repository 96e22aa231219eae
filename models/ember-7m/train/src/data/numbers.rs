//! Numbers to be recalled, as lists of digits.
//!
//! Numbers of random digits are found again by what stands before: after two or three digits they
//! are unique, and a model that copies by the last digits is right nearly always. With several of
//! them in a prompt that fails in the first digits, and the model goes on with another's. So half
//! of the lists here are made of numbers that the digits before do not tell apart: only key and
//! place do.

use rand::{Rng, RngExt};

/// A resemblance among the numbers of one sequence.
pub fn likeness(rng: &mut impl Rng) -> i32 {
    rng.random_range(0..20)
}

/// `count` numbers of `digits` digits.
pub fn numbers(rng: &mut impl Rng, likeness: i32, count: usize, digits: usize) -> Vec<Vec<u8>> {
    let random = |rng: &mut _| -> Vec<u8> { (0..digits).map(|_| digit(rng)).collect() };
    match likeness {
        0..10 => (0..count).map(|_| random(rng)).collect(),
        // All of a few digits.
        10..14 => {
            let few: Vec<u8> = (0..rng.random_range(2..=4)).map(|_| digit(rng)).collect();
            let mut one = || (0..digits).map(|_| few[rng.random_range(0..few.len())]).collect();
            (0..count).map(|_| one()).collect()
        }
        // The same first digits.
        14..17 => {
            let shared = rng.random_range(1..digits.max(2)).min(digits);
            let start = random(rng);
            let mut numbers: Vec<Vec<u8>> = (0..count).map(|_| random(rng)).collect();
            for number in &mut numbers {
                number[..shared].copy_from_slice(&start[..shared]);
            }
            numbers
        }
        // One or two digits apart from one number.
        _ => {
            let mut numbers = vec![random(rng); count];
            for number in &mut numbers {
                for _ in 0..rng.random_range(1..=2) {
                    number[rng.random_range(0..digits)] = digit(rng);
                }
            }
            numbers
        }
    }
}

fn digit(rng: &mut impl Rng) -> u8 {
    rng.random_range(0..10)
}
