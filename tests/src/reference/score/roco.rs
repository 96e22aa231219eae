//! RoCo: the mean attention a token received, and how unsteady it was.

use crate::reference::Entry;
use crate::reference::margin::{Margin, border, falling, relative};

/// Mean and population standard deviation of the weights an entry received, the mean over its
/// group.
fn moments(entry: &Entry) -> (f64, f64) {
    let (mut mean_of_group, mut std_of_group) = (0.0, 0.0);
    for weights in &entry.received {
        let count = weights.len() as f64;
        let mean = weights.iter().sum::<f64>() / count;
        let variance = weights.iter().map(|weight| (weight - mean).powi(2)).sum::<f64>() / count;
        mean_of_group += mean / entry.received.len() as f64;
        std_of_group += variance.sqrt() / entry.received.len() as f64;
    }
    (mean_of_group, std_of_group)
}

/// `[kv_heads][entries]`: the mean, and 2 more, above any mean, for the `first` most unsteady.
pub fn scores(heads: &[Vec<Entry>], first: usize, margin: &mut Margin) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    for entries in heads {
        let moments: Vec<(f64, f64)> = entries.iter().map(moments).collect();
        let deviations: Vec<f64> = moments.iter().map(|(_, deviation)| *deviation).collect();
        let order = falling(&deviations);
        let (unsteady, steady) = order.split_at(first.min(order.len()));
        let of = |order: &[usize]| order.iter().map(|index| deviations[*index]).collect::<Vec<_>>();
        margin.score(border(&of(unsteady), &of(steady), relative));

        let score =
            |index: usize| moments[index].0 + if unsteady.contains(&index) { 2.0 } else { 0.0 };
        all.push((0..entries.len()).map(score).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry, keys};

    #[test]
    fn the_most_unsteady_of_four_comes_first() {
        let mut entries = keys(&[0.0; 4]);
        // Means 0.5, 0.3, 0.25, 0.2; deviations 0.1, 0.1, 0.25, 0.
        let received = [vec![0.6, 0.4, 0.5, 0.5], vec![0.4, 0.2], vec![0.5, 0.0], vec![0.2]];
        for (entry, received) in entries.iter_mut().zip(received) {
            entry.received = vec![received];
        }
        let mut margin = Margin::default();
        let scores = scores(&[entries], 1, &mut margin);
        assert_near(&scores[0], &[0.5, 0.3, 2.25, 0.2]);
        // The next deviation is 0.1, of the second; that of the first is sqrt(0.02 / 4).
        assert!((margin.scores - 0.6).abs() < 1e-12);
    }

    #[test]
    fn a_group_has_the_mean_of_its_heads() {
        let mut entry = entry(0, &[0.0], &[0.0], 0.0);
        entry.received = vec![vec![0.1, 0.3], vec![0.6, 0.2]];
        let (mean, std) = moments(&entry);
        assert_near(&[mean, std], &[0.3, 0.15]);
    }
}
