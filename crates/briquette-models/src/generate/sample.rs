use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::{Error, GenerateOptions, Result};

/// Chooses tokens by their logits, on the host. Penalty and filters come in the order of
/// `transformers`: repetition, temperature, top-k, top-p, min-p.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    repetition_penalty: f64,
    /// The tokens of the text so far, if repeating them is penalised, ascending and each once.
    seen: Vec<u32>,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// Each stream of the seed draws its own numbers, so a row of a batch does not depend on its
    /// neighbours. `prompt` is the text before the first choice.
    pub(crate) fn new(options: &GenerateOptions, prompt: &[u32], stream: u64) -> Result<Self> {
        let invalid =
            |option, found: String, must_be| Error::InvalidOption { option, found, must_be };
        let GenerateOptions { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } =
            *options;
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(invalid("temperature", temperature.to_string(), "0 or a positive number"));
        }
        if top_k == Some(0) {
            return Err(invalid("top_k", "0".into(), "at least 1"));
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return Err(invalid("top_p", top_p.to_string(), "above 0 and at most 1"));
        }
        if !(0.0..=1.0).contains(&min_p) {
            return Err(invalid("min_p", min_p.to_string(), "from 0 to 1"));
        }
        if !(repetition_penalty.is_finite() && repetition_penalty > 0.0) {
            let found = repetition_penalty.to_string();
            return Err(invalid("repetition_penalty", found, "a positive number"));
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        let top_k = top_k.unwrap_or(usize::MAX);
        let seen = Vec::new();
        let mut sampler = Self { temperature, top_k, top_p, min_p, repetition_penalty, seen, rng };
        prompt.iter().for_each(|token| sampler.see(*token));
        Ok(sampler)
    }

    /// A token, or `None` if a logit is NaN or +∞, or none is finite. Between equal logits the
    /// lower token is preferred.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        if logits.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return None;
        }
        let mut ranked: Vec<(u32, f32)> =
            (0..).zip(logits.iter().copied()).filter(|(_, logit)| logit.is_finite()).collect();
        self.penalise(&mut ranked);
        // The first of the highest: `max_by` would return the last.
        let (best, highest) = ranked
            .iter()
            .copied()
            .reduce(|best, other| if other.1 > best.1 { other } else { best })?;
        let token = if self.temperature == 0.0 { best } else { self.draw(ranked, highest)? };
        self.see(token);
        Some(token)
    }

    /// Keskar et al., 2019, [arXiv:1909.05858](https://arxiv.org/abs/1909.05858), section 4.1: the
    /// logits of tokens seen are divided by the penalty; negative ones multiplied, as
    /// `transformers` does, so that both go down.
    fn penalise(&self, ranked: &mut [(u32, f32)]) {
        let penalty = self.repetition_penalty as f32;
        for (token, logit) in ranked.iter_mut() {
            if self.seen.binary_search(token).is_ok() {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }

    fn see(&mut self, token: u32) {
        if self.repetition_penalty != 1.0
            && let Err(place) = self.seen.binary_search(&token)
        {
            self.seen.insert(place, token);
        }
    }

    fn draw(&mut self, mut ranked: Vec<(u32, f32)>, highest: f32) -> Option<u32> {
        let weight = |logit: f32| (f64::from(logit - highest) / self.temperature).exp();
        if self.top_k < ranked.len() || self.top_p < 1.0 || self.min_p > 0.0 {
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            ranked.truncate(self.top_k);
            let total: f64 = ranked.iter().map(|(_, logit)| weight(*logit)).sum();
            if self.top_p < 1.0 {
                let mut sum = 0.0;
                let reaches = |(_, logit): &(u32, f32)| {
                    sum += weight(*logit);
                    sum >= self.top_p * total
                };
                let last = ranked.iter().position(reaches).unwrap_or(ranked.len() - 1);
                ranked.truncate(last + 1);
            }
            // The weight of the most likely token is 1.
            ranked.retain(|(_, logit)| weight(*logit) >= self.min_p);
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

    fn options(temperature: f64, top_p: f64) -> GenerateOptions {
        GenerateOptions { temperature, top_p, seed: 7, ..Default::default() }
    }

    fn draws(temperature: f64, top_p: f64, logits: &[f32], count: usize) -> Vec<u32> {
        draws_with(&options(temperature, top_p), logits, count)
    }

    fn draws_with(options: &GenerateOptions, logits: &[f32], count: usize) -> Vec<u32> {
        let mut sampler = Sampler::new(options, &[], 0).unwrap();
        (0..count).map(|_| sampler.choose(logits).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_highest() {
        assert_eq!(draws(0.0, 1.0, &[0.0, 3.0, f32::NEG_INFINITY, 3.0], 1), [1]);
    }

    #[test]
    fn nothing_is_chosen_from_broken_logits() {
        for logits in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [f32::NEG_INFINITY; 2]] {
            assert_eq!(Sampler::new(&options(0.0, 1.0), &[], 0).unwrap().choose(&logits), None);
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
    fn top_k_keeps_the_most_likely() {
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        let options = |top_k| GenerateOptions { top_k: Some(top_k), ..options(1.0, 1.0) };
        assert!(draws_with(&options(1), &logits, 200).iter().all(|t| *t == 1));
        let two = draws_with(&options(2), &logits, 500);
        assert!(two.contains(&1) && two.contains(&2) && !two.contains(&0));
        assert!(draws_with(&options(9), &logits, 500).contains(&0));
        // Top-p counts what top-k has left: 0.5 of 0.8 alone reaches 0.6.
        let both = GenerateOptions { top_p: 0.6, ..options(2) };
        assert!(draws_with(&both, &logits, 200).iter().all(|t| *t == 1));
    }

    #[test]
    fn min_p_drops_what_is_unlikely_beside_the_most_likely() {
        let logits = [0.2f32.ln(), 0.5f32.ln(), 0.3f32.ln()];
        let options = |min_p| GenerateOptions { min_p, ..options(1.0, 1.0) };
        assert!(draws_with(&options(0.39), &logits, 500).contains(&0));
        let two = draws_with(&options(0.41), &logits, 500);
        assert!(two.contains(&1) && two.contains(&2) && !two.contains(&0));
        assert!(draws_with(&options(1.0), &logits, 200).iter().all(|t| *t == 1));
    }

    #[test]
    fn repeating_costs() {
        let options = GenerateOptions { repetition_penalty: 2.0, ..options(0.0, 1.0) };
        // 3 and then 1.5; 2 and then 1; -1 and then -2.
        assert_eq!(draws_with(&options, &[3.0, 2.0, -1.0], 3), [0, 1, 0]);
        let mut after = Sampler::new(&options, &[0, 0, 2], 0).unwrap();
        assert_eq!(after.choose(&[3.0, 1.6, -1.0]), Some(1));
        let mut negative = Sampler::new(&options, &[0], 0).unwrap();
        assert_eq!(negative.choose(&[-1.0, -1.5, -3.0]), Some(1));
    }

    #[test]
    fn options_outside_their_range_are_refused() {
        let base = || options(1.0, 1.0);
        for (options, named) in [
            (GenerateOptions { temperature: -1.0, ..base() }, "temperature"),
            (GenerateOptions { temperature: f64::NAN, ..base() }, "temperature"),
            (GenerateOptions { top_p: 0.0, ..base() }, "top_p"),
            (GenerateOptions { top_p: 1.1, ..base() }, "top_p"),
            (GenerateOptions { top_k: Some(0), ..base() }, "top_k"),
            (GenerateOptions { min_p: 1.5, ..base() }, "min_p"),
            (GenerateOptions { repetition_penalty: 0.0, ..base() }, "repetition_penalty"),
        ] {
            match Sampler::new(&options, &[], 0) {
                Err(Error::InvalidOption { option, .. }) => assert_eq!(option, named),
                other => panic!("{named}: {other:?}"),
            }
        }
    }
}
