//! How much each layer suffers from a small cache (CompressKV, Eq. 6 to 12).
//!
//! A prompt is read twice, once with everything kept and once with a cache of [`CACHE`] tokens a
//! layer, filled by CompressKV's own selection: the last 8 queries of the layer's 4 best semantic
//! retrieval heads, mean-pooled over 5 tokens, the same budget for every layer. Then come the
//! tokens `t` that follow it (the answer of a retrieval prompt, or the next tokens of a text). With
//! `O` the output of a layer's attention for one of them, all heads side by side and multiplied by
//! the output projection `W_O` (Eq. 6 and 7),
//!
//! ```text
//! e_l = Σ_t ‖O_comp − O_full‖_F / (‖O_full‖_F + 1e-6)
//! ```
//!
//! `O_comp` is what the small cache returns for the queries, keys and values of the full run, so no
//! layer inherits the error of another. The `e_l` of all prompts of a data set are added up and
//! divided by their sum over the layers; the data sets are averaged, and the result is divided by
//! its sum.

/// Tokens of the small cache.
pub const CACHE: usize = 32;

const EPSILON: f64 = 1e-6;

/// The error of one layer in one prompt. Each of the tokens gives `‖O_comp − O_full‖_F` and
/// `‖O_full‖_F`.
pub fn relative(differences: &[f32], norms: &[f32]) -> f64 {
    let share =
        |(difference, norm): (&f32, &f32)| f64::from(*difference) / (f64::from(*norm) + EPSILON);
    differences.iter().zip(norms).map(share).sum()
}

/// The errors of the layers from those of every prompt, `[data set][prompt][layer]`: they sum to
/// one. Without any error all layers are equal.
pub fn combine(sets: &[Vec<&[f32]>], layers: usize) -> Vec<f64> {
    let mut total = vec![0.0; layers];
    for prompts in sets.iter().filter(|prompts| !prompts.is_empty()) {
        let mut sums = vec![0.0; layers];
        for prompt in prompts {
            for (sum, error) in sums.iter_mut().zip(*prompt) {
                *sum += f64::from(*error);
            }
        }
        for (total, share) in total.iter_mut().zip(shares(&sums)) {
            *total += share;
        }
    }
    shares(&total)
}

/// Divided by their sum.
fn shares(numbers: &[f64]) -> Vec<f64> {
    let sum: f64 = numbers.iter().sum();
    if sum > 0.0 {
        return numbers.iter().map(|number| number / sum).collect();
    }
    vec![1.0 / numbers.len().max(1) as f64; numbers.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_each_token() {
        assert!((relative(&[1.0, 3.0], &[2.0, 4.0]) - 1.25).abs() < 1e-5);
        // An output of zero does not divide by zero.
        assert_eq!(relative(&[0.0], &[0.0]), 0.0);
        assert!((relative(&[2e-6], &[1e-6]) - 1.0).abs() < 1e-3);
    }

    #[test]
    fn every_data_set_counts_the_same() {
        let close = |found: Vec<f64>, expected: &[f64]| {
            let same = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
            assert!(same && found.len() == expected.len(), "{found:?}");
        };
        // One with large numbers and two prompts, one with small numbers.
        let sets = [vec![&[30.0, 10.0][..], &[30.0, 10.0]], vec![&[0.125, 0.375]]];
        close(combine(&sets, 2), &[0.5, 0.5]);
        close(combine(&sets[..1], 2), &[0.75, 0.25]);
        close(combine(&[vec![&[3.0, 1.0][..], &[1.0, 3.0]], vec![&[1.0, 0.0]]], 2), &[0.75, 0.25]);
        close(combine(&[vec![&[3.0, 1.0][..]], vec![]], 2), &[0.75, 0.25]);
        close(combine(&[vec![&[0.0; 4][..]]], 4), &[0.25; 4]);
    }
}
