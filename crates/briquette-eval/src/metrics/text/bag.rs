use std::{collections::HashMap, hash::Hash};

use crate::metrics::harmonic_mean;

/// Things with their counts.
#[derive(Clone, Debug)]
pub(in crate::metrics) struct Bag<T> {
    counts: HashMap<T, usize>,
    /// How many there are.
    pub(in crate::metrics) len: usize,
}

impl<T: Eq + Hash> Bag<T> {
    /// How many this bag and the other have in common, each as often as the one that has it less
    /// often.
    pub(in crate::metrics) fn shared(&self, other: &Self) -> usize {
        self.counts.iter().map(|(thing, count)| other.count(thing).min(*count)).sum()
    }

    fn count(&self, thing: &T) -> usize {
        self.counts.get(thing).copied().unwrap_or(0)
    }

    /// Takes one out, if there is one.
    pub(in crate::metrics) fn take(&mut self, thing: &T) -> bool {
        match self.counts.get_mut(thing) {
            Some(count) if *count > 0 => {
                *count -= 1;
                self.len -= 1;
                true
            }
            _ => false,
        }
    }

    pub(in crate::metrics) fn holds(&self, thing: &T) -> bool {
        self.count(thing) > 0
    }

    /// F1 of what an answer shares with a reference, 0 if that is nothing.
    pub(in crate::metrics) fn f1(&self, reference: &Self) -> f64 {
        let shared = self.shared(reference) as f64;
        if shared == 0.0 {
            return 0.0;
        }
        harmonic_mean(shared / self.len as f64, shared / reference.len as f64)
    }
}

impl<T: Eq + Hash> FromIterator<T> for Bag<T> {
    fn from_iter<I: IntoIterator<Item = T>>(things: I) -> Self {
        let (mut counts, mut len) = (HashMap::new(), 0);
        for thing in things {
            *counts.entry(thing).or_insert(0) += 1;
            len += 1;
        }
        Self { counts, len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_things_count_as_often_as_in_both() {
        let bag = |text: &str| text.chars().collect::<Bag<char>>();
        assert_eq!(bag("aab").shared(&bag("abb")), 2);
        // Precision 2/3, recall 2/4.
        assert!((bag("aab").f1(&bag("abbb")) - 4.0 / 7.0).abs() < 1e-15);
        assert_eq!(bag("").f1(&bag("")), 0.0);
    }
}
