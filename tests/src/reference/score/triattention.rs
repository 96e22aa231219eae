//! TriAttention: what the mean query will give a key at 1, 2, 4, … positions from now, pair by pair
//! of channels.

use crate::reference::{Encoding, ModelCache};
use crate::session::MAX_POSITIONS;

/// `[kv_heads][entries]`.
pub fn scores(cache: &ModelCache, layer: usize, future: usize) -> Vec<Vec<f64>> {
    let profile = &cache.settings.profile;
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let seen = cache.layers[layer].seen;
    let mut all = Vec::new();
    for (head, entries) in cache.layers[layer].heads.iter().enumerate() {
        let mut best = vec![f64::NEG_INFINITY; entries.len()];
        for query_head in head * group..(head + 1) * group {
            let (mean, lengths) =
                (&profile.means[layer][query_head], &profile.lengths[layer][query_head]);
            let keys = cache.keys(entries);
            let found: Vec<f64> = keys
                .iter()
                .map(|key| score(mean, lengths, key, seen, future, cache.settings.encoding))
                .collect();
            let count = found.len() as f64;
            let average = found.iter().sum::<f64>() / count;
            let variance = found.iter().map(|score| (score - average).powi(2)).sum::<f64>() / count;
            for (best, score) in best.iter_mut().zip(&found) {
                *best = best.max((score - average) / variance.sqrt().max(1e-6));
            }
        }
        all.push(best);
    }
    all
}

/// Score of a `key` that is encoded where it was written.
fn score(
    mean: &[f64],
    lengths: &[f64],
    key: &[f64],
    seen: usize,
    future: usize,
    encoding: Encoding,
) -> f64 {
    let half = key.len() / 2;
    let mut ahead: Vec<usize> = (0..usize::BITS).map(|power| 1 << power).collect();
    ahead.retain(|ahead| *ahead <= future && seen + ahead < MAX_POSITIONS);
    let mut score = 0.0;
    for pair in 0..half {
        let polar = |x: &[f64]| (x[pair].hypot(x[pair + half]), x[pair + half].atan2(x[pair]));
        let ((q, q_angle), (k, k_angle)) = (polar(mean), polar(key));
        let frequency = match encoding {
            Encoding::None => 0.0,
            Encoding::Rotary { theta } => theta.powf(-(pair as f64) / half as f64),
        };
        let cosine = |ahead: &usize| (q_angle + frequency * (seen + ahead) as f64 - k_angle).cos();
        let cosines = ahead.iter().map(cosine).sum::<f64>() / ahead.len() as f64;
        score += q * k * cosines + (lengths[pair] - q) * k;
    }
    score
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pair_by_hand() {
        // q̄ = (3, 4) of mean length 6 and k = (0, 2): without positions 8, and (6 − 5) · 2.
        let found = score(&[3.0, 4.0], &[6.0], &[0.0, 2.0], 5, 4, Encoding::None);
        assert!((found - 10.0).abs() < 1e-12, "{found}");
        // One radian a position: of 6, 7 and 9.
        let turned =
            score(&[1.0, 0.0], &[1.0], &[1.0, 0.0], 5, 4, Encoding::Rotary { theta: 10.0 });
        let expected = (6.0_f64.cos() + 7.0_f64.cos() + 9.0_f64.cos()) / 3.0;
        assert!((turned - expected).abs() < 1e-12, "{turned}");
    }
}
