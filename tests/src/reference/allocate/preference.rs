//! CAKE: how spread out the last queries' attention is in a layer, and how much it moves.

use super::apportion;
use crate::reference::ModelCache;
use crate::reference::margin::Margin;
use crate::reference::score::cake::moments;
use crate::reference::score::window::{outside, window_weights};

/// `spread^(1/tau1) · movement^(1/tau2)`, over the entries before the last `window` tokens.
pub fn preference(cache: &ModelCache, layer: usize, window: usize, tau1: f64, tau2: f64) -> f64 {
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let (mut spread, mut movement) = (0.0, 0.0);
    for (query_head, rows) in window_weights(cache, layer, window).iter().enumerate() {
        let entries = &cache.layers[layer].heads[query_head / group];
        for entry in 0..outside(&cache.layers[layer], entries, window) {
            let received: Vec<f64> = rows.iter().map(|row| row[entry]).collect();
            spread -= received.iter().map(|a| a * (a + 1e-10).ln()).sum::<f64>();
            movement += moments(&received).1;
        }
    }
    spread.max(0.0).powf(1.0 / tau1) * movement.powf(1.0 / tau2)
}

/// Entries that each layer keeps beyond the protected ones, `[layers]`.
///
/// The paper shares out anew whenever a layer has been seen, among the layers seen so far; what was
/// evicted then does not come back. Shares shrink from layer to layer, so that sharing out once at
/// the end keeps the same, unless rounding made an earlier share smaller than the last: no margin
/// then.
pub fn bodies(cache: &ModelCache, body: usize, room: usize, margin: &mut Margin) -> Vec<usize> {
    let preferences: Vec<f64> =
        cache.layers.iter().map(|layer| layer.measured.expect("a prompt came first")).collect();
    let total = preferences.len() * body;
    let among = |layers: usize| {
        apportion(total, &preferences[..layers], &vec![0; layers], &vec![room; layers])
    };
    let (last, gap) = among(preferences.len());
    margin.share(gap);
    for layers in 1..preferences.len() {
        let earlier = among(layers).0;
        if earlier.iter().zip(&last).any(|(earlier, last)| earlier < last) {
            margin.share(0.0);
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};
    use crate::reference::{Method, Precision};

    #[test]
    fn spread_and_movement_of_two_queries_over_three_tokens() {
        // As in score/window.rs: 1/5 1/5 2/5, then 1/6 1/6 2/6.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[1.0, 1.0, 2.0, 1.0, 1.0]);
        let term = |a: f64| -a * a.ln();
        let spread = 2.0 * term(0.2) + term(0.4) + 2.0 * term(1.0 / 6.0) + term(1.0 / 3.0);
        // (1/30)² / 2 twice and (1/15)² / 2.
        let movement = 6.0 / 1800.0;
        let found = preference(&cache, 0, 2, 1.0, 1.0);
        assert!((found - spread * movement).abs() < 1e-9, "{found}");
        let found = preference(&cache, 0, 2, 2.0, 0.5);
        assert!((found - spread.sqrt() * movement * movement).abs() < 1e-9, "{found}");
    }

    #[test]
    fn twice_the_preference_is_twice_the_entries() {
        let mut settings = cache(Method::cake(), 9).settings;
        settings.layers = 3;
        let mut cache = ModelCache::new(settings, Precision::F32);
        for (layer, preference) in [3.0, 1.0, 2.0].into_iter().enumerate() {
            cache.layers[layer].measured = Some(preference);
        }
        let mut margin = Margin::default();
        assert_eq!(bodies(&cache, 4, 20, &mut margin), [6, 2, 4]);
        assert_near(&[margin.shares], &[f64::INFINITY]);
        // No more than 5 are there.
        assert_eq!(bodies(&cache, 4, 5, &mut margin), [5, 2, 5]);
    }
}
