use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Error, Result};

/// Chooses tokens by their logits, on the host.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    temperature: f64,
    top_p: f64,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Each stream of a seed draws its own numbers, so a row of a batch does not depend on its neighbours.
    pub(crate) fn new(temperature: f64, top_p: f64, seed: u64, stream: u64) -> Result<Self> {
        let invalid = |option, found: f64, must_be| Error::InvalidOption {
            option,
            found: found.to_string(),
            must_be,
        };
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(invalid("temperature", temperature, "0 or a positive number"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(invalid("top_p", top_p, "above 0 and at most 1"));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Ok(Self { temperature, top_p, rng })
    }

    /// A token, or `None` if a logit is NaN or +∞, or none is finite. Between equal logits the lower token
    /// is preferred.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return None;
        }
        let mut ranked: Vec<(u32, f32)> =
            (0..).zip(logits.iter().copied()).filter(|(_, logit)| logit.is_finite()).collect();
        // The first of the highest: `max_by` would return the last.
        let (best, highest) = ranked
            .iter()
            .copied()
            .reduce(|best, other| if other.1 > best.1 { other } else { best })?;
        if self.temperature == 0.0 {
            return Some(best);
        }
        let weight = |logit: f32| (f64::from(logit - highest) / self.temperature).exp();
        let total: f64 = ranked.iter().map(|(_, logit)| weight(*logit)).sum();
        if self.top_p < 1.0 {
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            let mut sum = 0.0;
            let reaches = |(_, logit): &(u32, f32)| {
                sum += weight(*logit);
                sum >= self.top_p * total
            };
            let last = ranked.iter().position(reaches).unwrap_or(ranked.len() - 1);
            ranked.truncate(last + 1);
        }
        let kept: f64 = ranked.iter().map(|(_, logit)| weight(*logit)).sum();
        let mut left = self.rng.random::<f64>() * kept;
        for (token, logit) in &ranked {
            left -= weight(*logit);
            if left < 0.0 {
                return Some(*token);
            }
        }
        // Rounding may leave a crumb beyond the last token.
        ranked.last().map(|(token, _)| *token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(temperature: f64, top_p: f64, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(temperature, top_p, 7, 0).unwrap();
        (0..count).map(|_| sampler.choose(logits).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_highest() {
        assert_eq!(draws(0.0, 1.0, &[0.0, 3.0, f32::NEG_INFINITY, 3.0], 1), [1]);
    }

    #[test]
    fn nothing_is_chosen_from_broken_logits() {
        for logits in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY; 2]] {
            assert_eq!(Sampler::new(0.0, 1.0, 0, 0).unwrap().choose(&logits), None);
        }
    }

    #[test]
    fn drawing_follows_the_probabilities() {
        // Probabilities 0.5, 0.3, 0.2.
        let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
        let tokens = draws(1.0, 1.0, &logits, 20_000);
        for (token, expected) in [(0, 0.5), (1, 0.3), (2, 0.2)] {
            let share = tokens.iter().filter(|t| **t == token).count() as f64 / 20_000.0;
            assert!((share - expected).abs() < 0.015, "token {token}: {share}");
        }
    }

    #[test]
    fn top_p_keeps_the_fewest_tokens_that_reach_it() {
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        assert!(draws(1.0, 0.45, &logits, 500).iter().all(|t| *t == 1));
        let two = draws(1.0, 0.7, &logits, 500);
        assert!(two.contains(&1) && two.contains(&2) && !two.contains(&0));
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let logits: Vec<f32> = (0..50).map(|i| (i as f32 * 0.37).sin()).collect();
        assert_eq!(draws(1.0, 0.9, &logits, 100), draws(1.0, 0.9, &logits, 100));
    }

    #[test]
    fn options_outside_their_range_are_refused() {
        for (temperature, top_p) in [(-1.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0), (1.0, 1.1)] {
            assert!(matches!(
                Sampler::new(temperature, top_p, 0, 0),
                Err(Error::InvalidOption { .. })
            ));
        }
    }
}
