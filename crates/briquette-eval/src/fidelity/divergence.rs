//! How far two next-token distributions are apart.

/// KL(full ‖ compressed) in nats, from the logits of both: Σ p · ln(p / q). Sums are taken in f64;
/// what rounding makes of equal distributions is never below 0.
pub fn kl_divergence(full: &[f32], compressed: &[f32]) -> f64 {
    let (full_norm, compressed_norm) = (log_sum_exp(full), log_sum_exp(compressed));
    let terms = full.iter().zip(compressed).map(|(full, compressed)| {
        let log_p = f64::from(*full) - full_norm;
        let log_q = f64::from(*compressed) - compressed_norm;
        log_p.exp() * (log_p - log_q)
    });
    terms.sum::<f64>().max(0.0)
}

/// Whether both hold the same token most likely; of equal ones the first.
pub fn agreement(full: &[f32], compressed: &[f32]) -> bool {
    most_likely(full) == most_likely(compressed)
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    most + logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum::<f64>().ln()
}

/// The place of the highest logit, the first of equal ones.
pub(crate) fn most_likely(logits: &[f32]) -> Option<usize> {
    let first_of_highest = |best: Option<usize>, at: usize| match best {
        Some(best) if logits[at] <= logits[best] => Some(best),
        _ => Some(at),
    };
    (0..logits.len()).fold(None, first_of_highest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: &[f64], shift: f32) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() as f32 + shift).collect()
    }

    #[test]
    fn agrees_with_sums_by_hand() {
        // ½ ln(½ / ¼) + ¼ ln(¼ / ¼) + ¼ ln(¼ / ½) = ¼ ln 2.
        let [p, q] = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]];
        let found = kl_divergence(&logits(&p, 0.0), &logits(&q, 0.0));
        assert!((found - 0.25 * 2f64.ln()).abs() < 1e-7, "{found}");
        // It is no distance: 0.9 ln 9 − 0.1 ln 9, and the other way round from ½ and ½.
        let [sharp, flat] = [[0.9, 0.1], [0.5, 0.5]];
        let there = kl_divergence(&logits(&sharp, 0.0), &logits(&flat, 0.0));
        let back = kl_divergence(&logits(&flat, 0.0), &logits(&sharp, 0.0));
        assert!((there - (0.9 * 1.8f64.ln() + 0.1 * 0.2f64.ln())).abs() < 1e-7, "{there}");
        assert!((back - 0.5 * ((5.0 / 9.0f64).ln() + 5f64.ln())).abs() < 1e-7, "{back}");
    }

    #[test]
    fn equal_distributions_are_nothing_apart() {
        let row: Vec<f32> = (0..4096).map(|i| ((i * 37) % 101) as f32 / 7.0).collect();
        assert_eq!(kl_divergence(&row, &row), 0.0);
        // Logits that differ by a constant are one distribution, however large they are.
        let p = logits(&[0.7, 0.2, 0.1], 0.0);
        let shifted = logits(&[0.7, 0.2, 0.1], 1000.0);
        assert!(kl_divergence(&p, &shifted) < 1e-7);
    }

    #[test]
    fn the_first_of_equals_counts() {
        assert!(agreement(&[0.0, 2.0, 2.0], &[1.0, 5.0, 3.0]));
        assert!(!agreement(&[0.0, 2.0, 2.0], &[1.0, 3.0, 5.0]));
    }
}
