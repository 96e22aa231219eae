//! Knorm: short keys.

use crate::reference::Entry;

/// The length of a vector.
pub fn length(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>]) -> Vec<Vec<f64>> {
    let score = |entry: &Entry| -length(&entry.key);
    heads.iter().map(|entries| entries.iter().map(score).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    #[test]
    fn three_and_four_are_five() {
        let entries = vec![entry(0, &[3.0, 4.0], &[0.0], 0.0), entry(1, &[0.0, 2.0], &[0.0], 0.0)];
        assert_near(&scores(&[entries])[0], &[-5.0, -2.0]);
    }
}
