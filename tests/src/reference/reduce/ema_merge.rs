//! D2O: evicted entries are merged into the nearest kept one, if it is nearer than the recent mean.

use std::f64::consts::E;

use crate::reference::Entry;
use crate::reference::attention::dot;
use crate::reference::margin::{Margin, absolute, largest};

/// The cosine of two vectors; of one without length, zero.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { dot(a, b) / lengths }
}

/// The parts by which entries are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Their keys.
    Keys,
    /// Their values.
    Values,
    /// Keys by keys, values by values.
    Each,
}

/// See [`Reduce::EmaMerge`](super::Reduce::EmaMerge).
#[derive(Clone, Copy, Debug)]
pub struct EmaMerge {
    /// The weight of the newest similarities in the threshold.
    pub beta: f64,
    /// Whether all are merged.
    pub all: bool,
    /// Whether all weigh the same.
    pub average: bool,
}

/// The key or the value of an entry.
type Part = fn(&Entry) -> &Vec<f64>;

/// An evicted entry, and the kept one nearest to it.
struct Evicted {
    head: usize,
    index: usize,
    nearest: usize,
    similarity: f64,
    gap: f64,
}

impl EmaMerge {
    /// Merges what is not among `kept` `[kv_heads]` into what is. The thresholds are the layer's,
    /// before and after.
    pub fn apply(
        &self,
        heads: &mut [Vec<Entry>],
        kept: &[Vec<usize>],
        compare: Compare,
        thresholds: &mut [Option<f64>; 2],
        margin: &mut Margin,
    ) {
        let (key, value): (Part, Part) = (|entry| &entry.key, |entry| &entry.value);
        let [of_keys, of_values] = thresholds;
        match compare {
            Compare::Keys => self.merge(heads, kept, key, of_keys, margin),
            Compare::Values => self.merge(heads, kept, value, of_keys, margin),
            Compare::Each => {
                let mut values = heads.to_vec();
                self.merge(heads, kept, key, of_keys, margin);
                self.merge(&mut values, kept, value, of_values, margin);
                for (entry, other) in heads.iter_mut().flatten().zip(values.iter().flatten()) {
                    entry.value = other.value.clone();
                }
            }
        }
    }

    /// The same by the similarity of one part.
    fn merge(
        &self,
        heads: &mut [Vec<Entry>],
        kept: &[Vec<usize>],
        part: Part,
        threshold: &mut Option<f64>,
        margin: &mut Margin,
    ) {
        let mut all: Vec<Evicted> = Vec::new();
        for (head, (entries, kept)) in heads.iter().zip(kept).enumerate() {
            for index in (0..entries.len()).filter(|index| !kept.contains(index)) {
                let similarities: Vec<f64> = kept
                    .iter()
                    .map(|j| cosine(part(&entries[index]), part(&entries[*j])))
                    .collect();
                let (nearest, gap) = largest(&similarities, absolute);
                let (nearest, similarity) = (kept[nearest], similarities[nearest]);
                all.push(Evicted { head, index, nearest, similarity, gap });
            }
        }
        if all.is_empty() {
            return;
        }
        let mean = all.iter().map(|evicted| evicted.similarity).sum::<f64>() / all.len() as f64;
        let now = threshold.map_or(mean, |before| self.beta * mean + (1.0 - self.beta) * before);
        *threshold = Some(now);

        // A single one is its own mean: equal on both sides, whatever the rounding.
        if !self.all && (all.len() > 1 || now != mean) {
            all.iter().for_each(|evicted| margin.cosine((evicted.similarity - now).abs()));
        }
        let merged: Vec<&Evicted> =
            all.iter().filter(|evicted| self.all || evicted.similarity >= now).collect();
        merged.iter().for_each(|evicted| margin.cosine(evicted.gap));

        let own = if self.average { 1.0 } else { E };
        let weight = |merged: &Evicted| if self.average { 1.0 } else { merged.similarity.exp() };
        for (head, entries) in heads.iter_mut().enumerate() {
            let before = entries.clone();
            for j in &kept[head] {
                let into: Vec<&&Evicted> =
                    merged.iter().filter(|m| m.head == head && m.nearest == *j).collect();
                let total = own + into.iter().map(|merged| weight(merged)).sum::<f64>();
                let mix = |of: Part, channel: usize| {
                    let own = own * of(&before[*j])[channel];
                    let others = into.iter().map(|m| weight(m) * of(&before[m.index])[channel]);
                    (own + others.sum::<f64>()) / total
                };
                for channel in 0..before[*j].key.len() {
                    entries[*j].key[channel] = mix(|entry| &entry.key, channel);
                    entries[*j].value[channel] = mix(|entry| &entry.value, channel);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    /// Kept: along x (first) and y (third); evicted: 45° between them, and nearly along y.
    fn four() -> Vec<Vec<Entry>> {
        let keys = [[2.0, 0.0], [3.0, 3.1], [0.0, 1.0], [0.0, 5.0]];
        vec![(0..4).map(|i| entry(i, &keys[i], &[i as f64, 1.0], 0.0)).collect()]
    }

    fn merge(
        heads: &mut [Vec<Entry>],
        kept: &[Vec<usize>],
        beta: f64,
        threshold: &mut Option<f64>,
        margin: &mut Margin,
    ) {
        let merge = EmaMerge { beta, all: false, average: false };
        merge.merge(heads, kept, |entry| &entry.key, threshold, margin);
    }

    #[test]
    fn all_are_merged_and_weigh_the_same() {
        let (mut heads, mut threshold) = (four(), None);
        let all = EmaMerge { beta: 0.7, all: true, average: true };
        all.merge(&mut heads, &[vec![0, 2]], |e| &e.key, &mut threshold, &mut Margin::default());
        // The second and the fourth go to the third.
        assert_near(&heads[0][2].key, &[1.0, 9.1 / 3.0]);
        assert_near(&heads[0][2].value, &[2.0, 1.0]);
    }

    #[test]
    fn keys_and_values_may_go_different_ways() {
        let of = |index, key: [f64; 2], value: [f64; 2]| entry(index, &key, &value, 0.0);
        // The key of the second is the third's, its value the first's.
        let mut heads = vec![vec![
            of(0, [1., 0.], [0., 2.]),
            of(1, [0., 3.], [0., 4.]),
            of(2, [0., 1.], [5., 0.]),
        ]];
        let (kept, mut thresholds) = ([vec![0, 2]], [None; 2]);
        let merge = EmaMerge { beta: 0.7, all: false, average: true };
        merge.apply(&mut heads, &kept, Compare::Each, &mut thresholds, &mut Margin::default());
        assert_eq!(thresholds, [Some(1.0), Some(1.0)]);
        assert_near(&heads[0][2].key, &[0.0, 2.0]);
        assert_near(&heads[0][2].value, &[5.0, 0.0]);
        assert_near(&heads[0][0].key, &[1.0, 0.0]);
        assert_near(&heads[0][0].value, &[0.0, 3.0]);
    }

    #[test]
    fn the_nearer_half_is_merged() {
        let (mut heads, kept) = (four(), [vec![0, 2]]);
        let (mut threshold, mut margin) = (None, Margin::default());
        merge(&mut heads, &kept, 0.7, &mut threshold, &mut margin);
        // The second has cosine 0.7186 with y (0.6954 with x), the fourth 1: only that one is above
        // the mean.
        let near = 3.1 / (9.0 + 9.61_f64).sqrt();
        assert_near(&[threshold.unwrap()], &[(1.0 + near) / 2.0]);
        // Into y, e : e. The first stays.
        assert_near(&heads[0][2].key, &[0.0, 3.0]);
        assert_near(&heads[0][2].value, &[2.5, 1.0]);
        assert_near(&heads[0][0].key, &[2.0, 0.0]);
        assert_near(&[margin.cosines], &[(1.0 - near) / 2.0]);
    }

    #[test]
    fn the_threshold_follows() {
        let (mut heads, mut threshold) = (four(), Some(0.5));
        merge(&mut heads, &[vec![0, 2]], 0.7, &mut threshold, &mut Margin::default());
        let near = 3.1 / (9.0 + 9.61_f64).sqrt();
        assert_near(&[threshold.unwrap()], &[0.7 * (1.0 + near) / 2.0 + 0.15]);
        // 0.7515: still above the second.
        assert_near(&heads[0][2].value, &[2.5, 1.0]);
        // Nothing evicted, nothing changed.
        let before = threshold;
        merge(&mut heads, &[vec![0, 1, 2, 3]], 0.7, &mut threshold, &mut Margin::default());
        assert_eq!(threshold, before);
    }

    #[test]
    fn two_into_one_by_the_power_of_their_cosines() {
        let (mut heads, mut threshold) = (four(), Some(-1.0));
        merge(&mut heads, &[vec![0, 2]], 0.0, &mut threshold, &mut Margin::default());
        let power = (3.1 / (9.0 + 9.61_f64).sqrt()).exp();
        let total = 2.0 * E + power;
        assert_near(&heads[0][2].key, &[3.0 * power / total, (6.0 * E + 3.1 * power) / total]);
        assert_near(&heads[0][2].value, &[(2.0 * E + power + 3.0 * E) / total, 1.0]);
    }
}
