//! Compactor's first half: how much a key stands out of the space that the keys of its head span.

use crate::reference::Entry;

/// The solution x of A x = b for a symmetric positive definite A `[n][n]`, by elimination.
pub fn solve(matrix: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let n = right.len();
    let mut rows: Vec<Vec<f64>> = matrix.to_vec();
    for (row, right) in rows.iter_mut().zip(right) {
        row.push(*right);
    }
    for pivot in 0..n {
        for row in 0..n {
            if row != pivot {
                let factor = rows[row][pivot] / rows[pivot][pivot];
                let taken = rows[pivot].clone();
                for (number, taken) in rows[row].iter_mut().zip(taken).skip(pivot) {
                    *number -= factor * taken;
                }
            }
        }
    }
    (0..n).map(|row| rows[row][n] / rows[row][row]).collect()
}

/// `[kv_heads][entries]`; the first `sinks` of a head are left out, and zero. Keys have no more
/// channels than the sketch: it is left out, too.
pub fn scores(heads: &[Vec<Entry>], sinks: usize, ridge: f64) -> Vec<Vec<f64>> {
    heads.iter().map(|entries| of_head(entries, sinks, ridge)).collect()
}

fn of_head(entries: &[Entry], sinks: usize, ridge: f64) -> Vec<f64> {
    let sinks = sinks.min(entries.len());
    let mut scores = vec![0.0; sinks];
    let scored = &entries[sinks..];
    let Some(first) = scored.first() else { return scores };
    let channels = first.key.len();
    let mean = |channel: usize| {
        scored.iter().map(|entry| entry.key[channel]).sum::<f64>() / scored.len() as f64
    };
    let means: Vec<f64> = (0..channels).map(mean).collect();
    let centred: Vec<Vec<f64>> = scored
        .iter()
        .map(|entry| entry.key.iter().zip(&means).map(|(x, mean)| x - mean).collect())
        .collect();
    let mut gram = vec![vec![0.0; channels]; channels];
    for (i, row) in gram.iter_mut().enumerate() {
        for (j, number) in row.iter_mut().enumerate() {
            *number = centred.iter().map(|key| key[i] * key[j]).sum();
        }
        row[i] += ridge;
    }
    for key in &centred {
        let solved = solve(&gram, key);
        scores.push(key.iter().zip(solved).map(|(a, b)| a * b).sum());
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, keys};

    #[test]
    fn two_equations() {
        assert_near(&solve(&[vec![2.0, 1.0], vec![1.0, 3.0]], &[4.0, 7.0]), &[1.0, 2.0]);
    }

    #[test]
    fn one_channel_is_squares_over_their_sum() {
        // Behind a sink 1, 2, 6: centred −2, −1, 3, squares 4, 1, 9.
        let entries = keys(&[9.0, 1.0, 2.0, 6.0]);
        assert_near(&scores(&[entries], 1, 1.0)[0], &[0.0, 4.0 / 15.0, 1.0 / 15.0, 9.0 / 15.0]);
    }
}
