//! Shares with confidence intervals, and means with their errors.

use serde::Serialize;

/// The normal quantile of a two-sided 95 % interval.
const Z: f64 = 1.959_963_984_540_054;

/// A share of successes with its 95 % Wilson interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Proportion {
    /// Successes over trials; 0 without a trial.
    pub rate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Independent trials.
    pub trials: usize,
}

impl Proportion {
    /// The interval of Wilson (1927): unlike `rate ± 1.96 σ` it stays inside 0..1, and has a width also
    /// when every trial went the same way.
    ///
    /// `successes` need not be whole: a trial may succeed in part.
    pub fn wilson(successes: f64, trials: usize) -> Self {
        if trials == 0 {
            return Self { rate: 0.0, low: 0.0, high: 1.0, trials };
        }
        let n = trials as f64;
        let rate = (successes / n).clamp(0.0, 1.0);
        let shrink = 1.0 + Z * Z / n;
        let centre = (rate + Z * Z / (2.0 * n)) / shrink;
        let half = Z / shrink * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt();
        Self {
            rate,
            // In exact arithmetic the ends touch 0 and 1 at those rates; rounding must not cross them.
            low: (centre - half).clamp(0.0, rate),
            high: (centre + half).clamp(rate, 1.0),
            trials,
        }
    }
}

/// A mean of independent numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// The mean; 0 of no number.
    pub mean: f64,
    /// Its standard error, from the spread of the numbers; 0 of fewer than two.
    pub error: f64,
    /// Numbers.
    pub count: usize,
}

impl Mean {
    /// Of these numbers.
    pub fn of(numbers: &[f64]) -> Self {
        let count = numbers.len();
        let n = count.max(1) as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        let error = if count < 2 { 0.0 } else { (squares / (n - 1.0) / n).sqrt() };
        Self { mean, error, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 5e-5
    }

    #[test]
    fn agrees_with_published_values() {
        // Newcombe (1998), table I, method 3.
        for (successes, trials, low, high) in [
            (81.0, 263, 0.2553, 0.3662),
            (15.0, 148, 0.0624, 0.1605),
            (0.0, 20, 0.0, 0.1611),
            (1.0, 29, 0.0061, 0.1718),
        ] {
            let p = Proportion::wilson(successes, trials);
            assert!(close(p.low, low) && close(p.high, high), "{successes}/{trials}: {p:?}");
        }
    }

    #[test]
    fn stays_inside_and_around_the_rate() {
        for trials in [1, 2, 7, 1000] {
            for successes in 0..=trials {
                let p = Proportion::wilson(successes as f64, trials);
                assert!(
                    0.0 <= p.low && p.low <= p.rate && p.rate <= p.high && p.high <= 1.0,
                    "{p:?}"
                );
            }
            assert_eq!(Proportion::wilson(0.0, trials).low, 0.0);
            assert_eq!(Proportion::wilson(trials as f64, trials).high, 1.0);
        }
    }

    #[test]
    fn nothing_is_known_without_a_trial() {
        let p = Proportion::wilson(0.0, 0);
        assert_eq!((p.low, p.high), (0.0, 1.0));
    }

    #[test]
    fn partial_success_lies_between() {
        let [less, half, more] = [3.0, 3.5, 4.0].map(|s| Proportion::wilson(s, 10));
        assert!(less.low < half.low && half.low < more.low);
        assert!(less.high < half.high && half.high < more.high);
    }

    #[test]
    fn means_know_their_error() {
        let Mean { mean, error, count } = Mean::of(&[1.0, 2.0, 3.0, 6.0]);
        // The spread is √(14 / 3), the error half of it.
        assert!(close(mean, 3.0) && close(error, 1.080_123) && count == 4);
        assert_eq!(Mean::of(&[5.0]), Mean { mean: 5.0, error: 0.0, count: 1 });
        assert_eq!(Mean::of(&[]), Mean { mean: 0.0, error: 0.0, count: 0 });
    }
}
