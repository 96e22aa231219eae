//! CaM: the values of evicted entries are added to the next kept ones, by chance.

use crate::reference::Entry;
use crate::reference::margin::{Margin, relative};

/// A number between 0 and 1 for every token of a layer and head.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Seed of all numbers.
    pub seed: u64,
    /// The layer.
    pub layer: usize,
    /// The kv head.
    pub head: usize,
}

impl Draw {
    /// The number of the token at this position.
    pub fn at(&self, position: usize) -> f64 {
        const MODULUS: u64 = 46337;
        let parts = [
            self.seed % MODULUS,
            self.layer as u64,
            self.head as u64,
            position as u64 % MODULUS,
            0,
        ];
        let mut x = 0;
        for part in parts {
            x = ((x + part) % MODULUS * 25173 + 13849) % MODULUS;
            x = x * x % MODULUS * x % MODULUS;
        }
        x as f64 / MODULUS as f64
    }
}

/// Adds the values of entries outside `kept` to the next `window` entries in it.
pub fn merge(
    entries: &mut [Entry],
    kept: &[usize],
    window: usize,
    draw: Draw,
    margin: &mut Margin,
) {
    let before = entries.to_vec();
    for index in (0..before.len()).filter(|index| !kept.contains(index)) {
        let next: Vec<usize> = kept.iter().copied().filter(|k| *k > index).take(window).collect();
        if next.is_empty() {
            continue;
        }
        let received = before[index].accumulated();
        let mean = next.iter().map(|k| before[*k].accumulated()).sum::<f64>() / next.len() as f64;
        // Never attended to, the window neither: never merged.
        let chance = if received == 0.0 { 0.0 } else { received / mean };
        let number = draw.at(before[index].position);
        if received > 0.0 {
            margin.score(relative(number, chance));
        }
        if number < chance.min(1.0) {
            for k in &next {
                for (channel, value) in entries[*k].value.iter_mut().zip(&before[index].value) {
                    *channel += value / next.len() as f64;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    #[test]
    fn the_first_numbers() {
        // Everything zero: x = 13849³ mod 46337, and again.
        let mut x: u128 = 0;
        for _ in 0..5 {
            x = ((x * 25173 + 13849) % 46337).pow(3) % 46337;
        }
        let draw = Draw { seed: 0, layer: 0, head: 0 };
        assert_eq!(draw.at(0), x as f64 / 46337.0);
        // Different places give different numbers, positions and seeds go round.
        let at = |seed, layer, head, position| Draw { seed, layer, head }.at(position);
        let numbers = [at(0, 0, 0, 1), at(0, 0, 1, 0), at(0, 1, 0, 0), at(1, 0, 0, 0)];
        assert!(
            numbers.iter().all(|number| (0.0..1.0).contains(number) && *number != at(0, 0, 0, 0))
        );
        assert_eq!(at(46337 + 5, 1, 2, 46337 + 3), at(5, 1, 2, 3));
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let draw = Draw { seed: 7, layer: 2, head: 1 };
        let below = (0..1000).filter(|position| draw.at(*position) < 0.3).count();
        assert!((250..350).contains(&below), "{below} of 1000 below 0.3");
    }

    #[test]
    fn a_value_goes_to_the_next_two_kept() {
        // The second received 4 times as much as the next two in the mean: merged whatever the
        // number. The last has no next one; the fourth received nothing.
        let numbers = [(1.0, 1.0), (8.0, 6.0), (10.0, 1.0), (7.0, 0.0), (20.0, 2.0), (5.0, 9.0)];
        let mut entries: Vec<Entry> = numbers
            .into_iter()
            .enumerate()
            .map(|(position, (value, received))| entry(position, &[0.0], &[value], received))
            .collect();
        let draw = Draw { seed: 0, layer: 0, head: 0 };
        merge(&mut entries, &[0, 2, 4], 2, draw, &mut Margin::default());
        let values: Vec<f64> = entries.iter().map(|entry| entry.value[0]).collect();
        assert_near(&values, &[1.0, 8.0, 14.0, 7.0, 24.0, 5.0]);
    }

    #[test]
    fn by_chance_below_the_share_of_the_mean() {
        let draw = Draw { seed: 3, layer: 0, head: 0 };
        let number = draw.at(0);
        for (received, merged) in [(number * 0.99, false), (number * 1.01, true)] {
            let mut entries = [entry(0, &[0.0], &[4.0], received), entry(1, &[0.0], &[1.0], 1.0)];
            let mut margin = Margin::default();
            merge(&mut entries, &[1], 32, draw, &mut margin);
            assert_eq!(entries[1].value[0], if merged { 5.0 } else { 1.0 });
            assert!((0.009..0.011).contains(&margin.scores));
        }
    }
}
