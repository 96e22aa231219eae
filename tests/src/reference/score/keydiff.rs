//! KeyDiff: keys that are unlike the others.

use super::knorm::length;
use crate::reference::Entry;
use crate::reference::reduce::ema_merge::cosine;

/// `[kv_heads][entries]`
pub fn scores(heads: &[Vec<Entry>]) -> Vec<Vec<f64>> {
    let of_head = |entries: &Vec<Entry>| {
        let mut anchor = vec![0.0; entries[0].key.len()];
        for entry in entries {
            let length = length(&entry.key);
            for (anchor, x) in anchor.iter_mut().zip(&entry.key) {
                *anchor += x / length / entries.len() as f64;
            }
        }
        entries.iter().map(|entry| -cosine(&entry.key, &anchor)).collect()
    };
    heads.iter().map(of_head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, entry};

    #[test]
    fn two_against_one() {
        // The anchor is (2/3, 1/3), of length √5/3.
        let keys = [[2.0, 0.0], [1.0, 0.0], [0.0, 7.0]];
        let entries = (0..3).map(|i| entry(i, &keys[i], &[0.0], 0.0)).collect();
        let root = 5.0_f64.sqrt();
        assert_near(&scores(&[entries])[0], &[-2.0 / root, -2.0 / root, -1.0 / root]);
    }
}
