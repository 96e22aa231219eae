//! The entries that a head keeps.

use crate::reference::margin::{border, relative};

/// Picks `keep` of the entries: the first `sinks`, the last `recent`, then the highest scores, the
/// older of two equal ones first. Returns the indices in order, and how close the selection was.
pub fn select(scores: &[f64], keep: usize, sinks: usize, recent: usize) -> (Vec<usize>, f64) {
    let entries = scores.len();
    if entries <= keep {
        return ((0..entries).collect(), f64::INFINITY);
    }
    let sinks = sinks.min(keep);
    let recent = recent.min(keep - sinks);
    let is_protected = |index: &usize| *index < sinks || *index + recent >= entries;
    let (mut kept, mut rest): (Vec<usize>, Vec<usize>) = (0..entries).partition(is_protected);
    rest.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));

    let (chosen, left) = rest.split_at(keep - kept.len());
    let scores_of = |indices: &[usize]| indices.iter().map(|i| scores[*i]).collect::<Vec<f64>>();
    let margin = border(&scores_of(chosen), &scores_of(left), relative);
    kept.extend(chosen);
    kept.sort();
    (kept, margin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_entries_come_first_and_the_older_of_equals_wins() {
        let scores = [0.0, 5.0, 1.0, 5.0, 5.0, 0.0, 0.1];
        assert_eq!(select(&scores, 4, 1, 1).0, [0, 1, 3, 6]);
        assert_eq!(select(&scores, 5, 0, 0).0, [1, 2, 3, 4, 6]);
        assert_eq!(select(&scores, 2, 1, 1).0, [0, 6]);
        assert_eq!(select(&scores, 7, 1, 1).0.len(), 7);
        assert_eq!(select(&scores, 2, 1, 5).0, [0, 6]);
    }

    #[test]
    fn margin_is_the_gap_at_the_border() {
        assert_eq!(select(&[4.0, 1.0, 3.0, 2.0], 2, 0, 0).1, 1.0 / 3.0);
        assert_eq!(select(&[4.0, 1.0], 2, 0, 0).1, f64::INFINITY);
        assert_eq!(select(&[4.0, 2.0, 2.0, 1.0], 2, 0, 0).1, 0.5);
    }
}
