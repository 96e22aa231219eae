//! D2O: evicted entries are merged into the nearest kept one, if it is nearer than the recent mean.

use std::f64::consts::E;

use crate::reference::Entry;
use crate::reference::margin::{Margin, absolute, largest};

/// The cosine of two vectors; of one without length, zero.
pub fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths == 0.0 { 0.0 } else { dot(a, b) / lengths }
}

/// An evicted entry, and the kept one nearest to it.
struct Evicted {
    head: usize,
    index: usize,
    nearest: usize,
    similarity: f64,
    gap: f64,
}

/// Merges what is not among `kept` `[kv_heads]` into what is. `threshold` is the layer's, before and after.
pub fn merge(
    heads: &mut [Vec<Entry>],
    kept: &[Vec<usize>],
    beta: f64,
    threshold: &mut Option<f64>,
    margin: &mut Margin,
) {
    let mut all: Vec<Evicted> = Vec::new();
    for (head, (entries, kept)) in heads.iter().zip(kept).enumerate() {
        for index in (0..entries.len()).filter(|index| !kept.contains(index)) {
            let similarities: Vec<f64> =
                kept.iter().map(|j| cosine(&entries[index].key, &entries[*j].key)).collect();
            let (nearest, gap) = largest(&similarities, absolute);
            let (nearest, similarity) = (kept[nearest], similarities[nearest]);
            all.push(Evicted { head, index, nearest, similarity, gap });
        }
    }
    if all.is_empty() {
        return;
    }
    let mean = all.iter().map(|evicted| evicted.similarity).sum::<f64>() / all.len() as f64;
    let now = threshold.map_or(mean, |before| beta * mean + (1.0 - beta) * before);
    *threshold = Some(now);

    // A single one is its own mean: equal on both sides, whatever the rounding.
    if all.len() > 1 || now != mean {
        all.iter().for_each(|evicted| margin.cosine((evicted.similarity - now).abs()));
    }
    let merged: Vec<&Evicted> = all.iter().filter(|evicted| evicted.similarity >= now).collect();
    merged.iter().for_each(|evicted| margin.cosine(evicted.gap));

    for (head, entries) in heads.iter_mut().enumerate() {
        let before = entries.clone();
        for j in &kept[head] {
            let into: Vec<&&Evicted> =
                merged.iter().filter(|m| m.head == head && m.nearest == *j).collect();
            let total = E + into.iter().map(|merged| merged.similarity.exp()).sum::<f64>();
            let mix = |of: fn(&Entry) -> &Vec<f64>, channel: usize| {
                let own = E * of(&before[*j])[channel];
                let others =
                    into.iter().map(|m| m.similarity.exp() * of(&before[m.index])[channel]);
                (own + others.sum::<f64>()) / total
            };
            for channel in 0..before[*j].key.len() {
                entries[*j].key[channel] = mix(|entry| &entry.key, channel);
                entries[*j].value[channel] = mix(|entry| &entry.value, channel);
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

    #[test]
    fn the_nearer_half_is_merged() {
        let (mut heads, kept) = (four(), [vec![0, 2]]);
        let (mut threshold, mut margin) = (None, Margin::new());
        merge(&mut heads, &kept, 0.7, &mut threshold, &mut margin);
        // The second has cosine 0.7186 with y (0.6954 with x), the fourth 1: only that one is above the mean.
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
        merge(&mut heads, &[vec![0, 2]], 0.7, &mut threshold, &mut Margin::new());
        let near = 3.1 / (9.0 + 9.61_f64).sqrt();
        assert_near(&[threshold.unwrap()], &[0.7 * (1.0 + near) / 2.0 + 0.15]);
        // 0.7515: still above the second.
        assert_near(&heads[0][2].value, &[2.5, 1.0]);
        // Nothing evicted, nothing changed.
        let before = threshold;
        merge(&mut heads, &[vec![0, 1, 2, 3]], 0.7, &mut threshold, &mut Margin::new());
        assert_eq!(threshold, before);
    }

    #[test]
    fn two_into_one_by_the_power_of_their_cosines() {
        let (mut heads, mut threshold) = (four(), Some(-1.0));
        merge(&mut heads, &[vec![0, 2]], 0.0, &mut threshold, &mut Margin::new());
        let power = (3.1 / (9.0 + 9.61_f64).sqrt()).exp();
        let total = 2.0 * E + power;
        assert_near(&heads[0][2].key, &[3.0 * power / total, (6.0 * E + 3.1 * power) / total]);
        assert_near(&heads[0][2].value, &[(2.0 * E + power + 3.0 * E) / total, 1.0]);
    }
}
