//! DropKV: how far the outputs of the last queries would move without a token.

use super::Pool;
use super::window::{smooth, window_weights};
use crate::reference::ModelCache;
use crate::reference::attention::weighted_mean;

/// `[kv_heads][entries]`.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    window: usize,
    pool: Option<Pool>,
) -> Vec<Vec<f64>> {
    let heads = &cache.layers[layer].heads;
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let weights = window_weights(cache, layer, window);
    let mut all = Vec::new();
    for (head, entries) in heads.iter().enumerate() {
        let values: Vec<Vec<f64>> = entries.iter().map(|entry| entry.value.clone()).collect();
        let mut scores = vec![0.0; entries.len()];
        for queries in &weights[head * group..(head + 1) * group] {
            for row in queries {
                let output = weighted_mean(row, &values);
                for (score, (weight, value)) in scores.iter_mut().zip(row.iter().zip(&values)) {
                    let square: f64 = value.iter().zip(&output).map(|(v, o)| (v - o).powi(2)).sum();
                    let rest = (1.0 - weight).max(1e-6);
                    *score += (weight / rest).powi(2) * square / group as f64;
                }
            }
        }
        all.push(smooth(&scores, pool));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};

    #[test]
    fn two_tokens_and_one_query() {
        // It gives 1/4 and 3/4, and its output is 3/4: the values are 0 and 1.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[1.0, 3.0]);
        let found = scores(&cache, 0, 1, None);
        assert_near(&found[0], &[(1.0_f64 / 3.0 * 3.0 / 4.0).powi(2), (3.0_f64 / 4.0).powi(2)]);
    }
}
