//! CurDKV: squared lengths as shares of a neighbourhood's.

use crate::reference::Entry;

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>], window: usize) -> Vec<Vec<f64>> {
    let square = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let of_group = |group: &[Entry]| {
        let keys: f64 = group.iter().map(|entry| square(&entry.key)).sum();
        let values: f64 = group.iter().map(|entry| square(&entry.value)).sum();
        let score = |entry: &Entry| square(&entry.key) / keys * square(&entry.value) / values;
        group.iter().map(score).collect::<Vec<f64>>()
    };
    heads.iter().map(|entries| entries.chunks(window).flat_map(of_group).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    #[test]
    fn groups_of_two() {
        let entries = vec![
            entry(0, &[1.0], &[2.0], 0.0),
            entry(1, &[3.0], &[1.0], 0.0),
            entry(2, &[5.0], &[7.0], 0.0),
        ];
        assert_near(&scores(&[entries], 2)[0], &[0.1 * 0.8, 0.9 * 0.2, 1.0]);
    }
}
