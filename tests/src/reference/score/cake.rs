//! CAKE: what the last queries attend to, and how much their attention moves.

use super::window::{Pool, outside, smooth, window_weights};
use crate::reference::ModelCache;

/// Mean and unbiased variance of some numbers; the variance of a single one is zero.
pub fn moments(numbers: &[f64]) -> (f64, f64) {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
    (mean, squares / (numbers.len().max(2) - 1) as f64)
}

/// `[kv_heads][entries]`; the window's own tokens are above all.
pub fn scores(
    cache: &ModelCache,
    layer: usize,
    window: usize,
    gamma: f64,
    pool: Option<Pool>,
) -> Vec<Vec<f64>> {
    let weights = window_weights(cache, layer, window);
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let mut all = Vec::new();
    for (kv_head, entries) in cache.layers[layer].heads.iter().enumerate() {
        let before = outside(&cache.layers[layer], entries, window);
        let mut of_head = vec![0.0; before];
        for rows in &weights[kv_head * group..(kv_head + 1) * group] {
            let mut of_query_head = Vec::new();
            for entry in 0..before {
                let received: Vec<f64> = rows.iter().map(|row| row[entry]).collect();
                let (mean, variance) = moments(&received);
                of_query_head.push(mean + gamma * variance);
            }
            for (score, smooth) in of_head.iter_mut().zip(smooth(&of_query_head, pool)) {
                *score += smooth / group as f64;
            }
        }
        of_head.resize(entries.len(), f64::INFINITY);
        all.push(of_head);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::Method;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};

    #[test]
    fn the_variance_of_two_queries_is_half_their_squared_difference() {
        // As in window.rs: 1/5 1/5 2/5 1/5, then 1/6 1/6 2/6 1/6 1/6.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[1.0, 1.0, 2.0, 1.0, 1.0]);
        let (mean, variance) = (11.0 / 60.0, (1.0 / 30.0_f64).powi(2) / 2.0);
        let (low, high) = (mean + 200.0 * variance, 2.0 * mean + 200.0 * 4.0 * variance);
        let scores = scores(&cache, 0, 2, 200.0, None);
        assert_near(&scores[0], &[low, low, high, f64::INFINITY, f64::INFINITY]);
    }

    #[test]
    fn a_single_query_has_no_variance() {
        assert_eq!(moments(&[0.25]), (0.25, 0.0));
        assert_eq!(moments(&[1.0, 2.0, 3.0]), (2.0, 1.0));
    }
}
