//! FINCH: what the queries of a question attend to, each in proportion to how much stands before
//! it.

use super::window::{outside, window_weights};
use crate::reference::ModelCache;

/// `[kv_heads][entries]`; the question's own tokens are above all.
pub fn scores(cache: &ModelCache, layer: usize, window: usize) -> Vec<Vec<f64>> {
    let of_layer = &cache.layers[layer];
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let weights = window_weights(cache, layer, window);
    let of_head = |(head, entries): (usize, &Vec<crate::reference::Entry>)| {
        let mut scores = vec![0.0; outside(of_layer, entries, window)];
        for rows in &weights[head * group..(head + 1) * group] {
            for (age, row) in rows.iter().rev().enumerate() {
                let position = of_layer.seen - 1 - age;
                let before = entries.iter().filter(|entry| entry.position < position).count();
                let factor = before as f64 / (rows.len() * group) as f64;
                scores.iter_mut().zip(row).for_each(|(score, weight)| *score += weight * factor);
            }
        }
        scores.resize(entries.len(), f64::INFINITY);
        scores
    };
    of_layer.heads.iter().enumerate().map(of_head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};

    #[test]
    fn two_queries_of_four() {
        // The third query gives 1/4 and 1/4, and two tokens stand before it; the last 1/8, 1/8 and
        // 1/4 of three.
        let mut cache = cache(Method::finch(), 9);
        prompt(&mut cache, &[1.0, 1.0, 2.0, 4.0]);
        let expected = (2.0 / 4.0 + 3.0 / 8.0) / 2.0;
        let found = scores(&cache, 0, 2);
        assert_near(&found[0], &[expected, expected, f64::INFINITY, f64::INFINITY]);
    }
}
