//! AdaKV: the highest scores of all heads of a layer decide how many each head keeps.

use crate::reference::margin::{Margin, border, relative};

/// Entries that each head keeps beyond its first `sinks` and last `recent` ones, `[kv_heads]`:
/// first `sure`, then the rest of `total` by the highest of the others' `scores`,
/// `[kv_heads][entries]`.
pub fn bodies(
    scores: &[Vec<f64>],
    sinks: usize,
    recent: usize,
    sure: usize,
    total: usize,
    margin: &mut Margin,
) -> Vec<usize> {
    let mut bodies = Vec::new();
    // (score, head, entry)
    let mut pool: Vec<(f64, usize, usize)> = Vec::new();
    for (head, scores) in scores.iter().enumerate() {
        let mut own: Vec<(f64, usize, usize)> = Vec::new();
        for (index, score) in scores.iter().enumerate() {
            if index >= sinks && index + recent < scores.len() {
                own.push((*score, head, index));
            }
        }
        own.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.2.cmp(&b.2)));
        let sure = sure.min(own.len());
        bodies.push(sure);
        pool.extend(&own[sure..]);
    }
    pool.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let left = total.saturating_sub(bodies.iter().sum()).min(pool.len());
    let falling: Vec<f64> = pool.iter().map(|(score, ..)| *score).collect();
    margin.score(border(&falling[..left], &falling[left..], relative));
    for (_, head, _) in &pool[..left] {
        bodies[*head] += 1;
    }
    bodies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_for_two_heads_of_six() {
        // The first and the last entry of each head are protected.
        let scores = [vec![99.0, 8.0, 7.0, 9.0, 6.0, 99.0], vec![99.0, 1.0, 2.0, 5.0, 0.5, 99.0]];
        let mut margin = Margin::default();
        assert_eq!(bodies(&scores, 1, 1, 0, 6, &mut margin), [4, 2]);
        assert_eq!(margin.scores, 0.5);
        assert_eq!(bodies(&scores, 1, 1, 0, 4, &mut margin), [4, 0]);
        // Each is sure of one.
        assert_eq!(bodies(&scores, 1, 1, 1, 4, &mut margin), [3, 1]);
        assert_eq!(bodies(&scores, 1, 1, 1, 99, &mut margin), [4, 4]);
    }

    #[test]
    fn of_equals_the_lower_head() {
        let scores = [vec![1.0, 3.0], vec![3.0, 1.0]];
        assert_eq!(bodies(&scores, 0, 0, 0, 3, &mut Margin::default()), [2, 1]);
    }
}
