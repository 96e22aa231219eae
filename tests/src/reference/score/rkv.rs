//! R-KV: what the last queries attend to, less what others say already.

use super::window::Window;
use crate::reference::ModelCache;
use crate::reference::reduce::ema_merge::cosine;

/// `[kv_heads][entries]`; the window's own tokens are above all.
pub fn scores(cache: &ModelCache, layer: usize, window: Window, lambda: f64) -> Vec<Vec<f64>> {
    let attention = window.scores(cache, layer);
    let mut all = Vec::new();
    for (entries, attention) in cache.layers[layer].heads.iter().zip(&attention) {
        let mut powers = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let others = entries.iter().enumerate().filter(|(other, _)| *other != index);
            let sum: f64 = others.map(|(_, other)| cosine(&entry.key, &other.key)).sum();
            powers.push((sum / entries.len() as f64).exp());
        }
        let total: f64 = powers.iter().sum();
        let score =
            |(attention, power): (&f64, &f64)| lambda * attention - (1.0 - lambda) * power / total;
        all.push(attention.iter().zip(&powers).map(score).collect());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};
    use crate::reference::{Heads, Method};

    #[test]
    fn two_keys_of_one_side_and_one_of_the_other() {
        // ln ½ looks the other way: mean cosines 0 = (1 − 1) / 3, 0, −2/3. The last query gives
        // 4/13, 8/13, 1/13 and itself none.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[4.0, 8.0, 0.5]);
        let window = Window { window: 1, pool: None, heads: Heads::Group };
        let found = scores(&cache, 0, window, 0.25);
        let power = (-2.0_f64 / 3.0).exp();
        let total = 2.0 + power;
        let expected = [0.25 * 8.0 / 25.0 - 0.75 / total, 0.25 * 16.0 / 25.0 - 0.75 / total];
        assert_near(&found[0], &[expected[0], expected[1], f64::INFINITY]);
    }
}
