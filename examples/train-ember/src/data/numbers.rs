//! Numbers to be recalled, as lists of digits.
//!
//! Numbers of random digits are found again by what stands before: after two or three digits they
//! are unique, and a model that copies by the last digits is right nearly always. With several of
//! them in a prompt that fails in the first digits, and the model goes on with another's. So half
//! of the lists here are made of numbers that the digits before do not tell apart: only key and
//! place do.

use rand::{Rng, RngExt};

/// Resemblance among the numbers of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// Not at all.
    Random,
    /// All of a few digits.
    FewDigits,
    /// The same first digits.
    SharedStart,
    /// One or two digits apart from one number.
    NearlyEqual,
}

impl Likeness {
    pub(super) fn draw(rng: &mut impl Rng) -> Self {
        match rng.random_range(0..20) {
            0..10 => Self::Random,
            10..14 => Self::FewDigits,
            14..17 => Self::SharedStart,
            _ => Self::NearlyEqual,
        }
    }

    /// `count` numbers of `digits` digits.
    pub(super) fn numbers(self, rng: &mut impl Rng, count: usize, digits: usize) -> Vec<Vec<u8>> {
        let random = |rng: &mut _| -> Vec<u8> { (0..digits).map(|_| digit(rng)).collect() };
        match self {
            Self::Random => (0..count).map(|_| random(rng)).collect(),
            Self::FewDigits => {
                let few: Vec<u8> = (0..rng.random_range(2..=4)).map(|_| digit(rng)).collect();
                let mut one = || (0..digits).map(|_| few[rng.random_range(0..few.len())]).collect();
                (0..count).map(|_| one()).collect()
            }
            Self::SharedStart => {
                let shared = rng.random_range(1..digits.max(2));
                let start = random(rng);
                let mut numbers: Vec<Vec<u8>> = (0..count).map(|_| random(rng)).collect();
                for number in &mut numbers {
                    let shared = shared.min(digits);
                    number[..shared].copy_from_slice(&start[..shared]);
                }
                numbers
            }
            Self::NearlyEqual => {
                let first = random(rng);
                let mut numbers = vec![first; count];
                for number in &mut numbers {
                    for _ in 0..rng.random_range(1..=2) {
                        number[rng.random_range(0..digits)] = digit(rng);
                    }
                }
                numbers
            }
        }
    }
}

fn digit(rng: &mut impl Rng) -> u8 {
    rng.random_range(0..10)
}

#[cfg(test)]
mod tests {
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

    use super::*;

    #[test]
    fn numbers_have_their_likeness() {
        for seed in 0..50 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut of = |likeness: Likeness| likeness.numbers(&mut rng, 12, 7);
            let few = of(Likeness::FewDigits);
            let mut digits: Vec<u8> = few.concat();
            digits.sort_unstable();
            digits.dedup();
            assert!(digits.len() <= 4 && few.len() == 12);
            let start = of(Likeness::SharedStart);
            assert!(start.iter().all(|number| number[0] == start[0][0] && number.len() == 7));
            let near = of(Likeness::NearlyEqual);
            let apart = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
            assert!(near.iter().all(|number| apart(number, &near[0]) <= 4));
        }
    }

    #[test]
    fn random_numbers_use_all_digits() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut counts = [0; 10];
        for digit in Likeness::Random.numbers(&mut rng, 1000, 7).concat() {
            counts[usize::from(digit)] += 1;
        }
        assert!(counts.iter().all(|count| (600..800).contains(count)), "{counts:?}");
    }
}
