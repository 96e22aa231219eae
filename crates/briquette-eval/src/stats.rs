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
    /// The interval of Wilson (1927): unlike `rate ± 1.96 σ` it stays inside 0..1, and has a width
    /// also when every trial went the same way.
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
            // In exact arithmetic the ends touch 0 and 1 at those rates; rounding must not cross
            // them.
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
    /// Its standard error, from the spread of the numbers; `None` of fewer than two, which have no
    /// spread.
    pub error: Option<f64>,
    /// Numbers.
    pub count: usize,
}

impl Mean {
    /// Mean and standard error of these numbers.
    pub fn of(numbers: &[f64]) -> Self {
        let count = numbers.len();
        let n = count.max(1) as f64;
        let mean = numbers.iter().sum::<f64>() / n;
        let squares: f64 = numbers.iter().map(|number| (number - mean).powi(2)).sum();
        let error = (count > 1).then(|| (squares / (n - 1.0) / n).sqrt());
        Self { mean, error, count }
    }
}

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean; 0 of no number.
    pub mean: f64,
    /// Lower and upper end of the interval; `None` where the numbers are too few to have one.
    pub interval: Option<[f64; 2]>,
    /// Independent numbers.
    pub count: usize,
}

impl Estimate {
    /// Of scores in 0..=1: the interval of Wilson (1927) if every score is 0 or 1, else as
    /// [`of`](Self::of), cut to 0..=1.
    pub fn of_scores(scores: &[f64]) -> Self {
        Self::of_scores_from(0.0, scores)
    }

    /// As [`of_scores`](Self::of_scores), of scores that may be as low as `lowest`: what can be
    /// below 0 is no share, and has no interval of Wilson.
    pub fn of_scores_from(lowest: f64, scores: &[f64]) -> Self {
        let is_share = |score: &f64| lowest >= 0.0 && (*score == 0.0 || *score == 1.0);
        if !scores.is_empty() && scores.iter().all(is_share) {
            let share = Proportion::wilson(scores.iter().sum(), scores.len());
            let interval = Some([share.low, share.high]);
            return Self { mean: share.rate, interval, count: scores.len() };
        }
        Self::of(scores).within(lowest, 1.0)
    }

    /// Cuts the interval to the numbers that can be.
    pub fn within(self, low: f64, high: f64) -> Self {
        let interval = self.interval.map(|ends| ends.map(|end| end.clamp(low, high)));
        Self { interval, ..self }
    }

    /// Of any numbers: Student's interval, from their spread. It takes two numbers.
    pub fn of(numbers: &[f64]) -> Self {
        let Mean { mean, error, count } = Mean::of(numbers);
        let interval = error.map(|error| {
            let half = student(count - 1) * error;
            [mean - half, mean + half]
        });
        Self { mean, interval, count }
    }

    /// The mean of these means, each of numbers of its own: a mean over tasks. Its interval treats
    /// them as independent, each side from the same sides of theirs (Donner and Zou, 2012), and is
    /// there if all have one.
    pub fn mean_of(estimates: &[Self]) -> Self {
        let n = estimates.len().max(1) as f64;
        let mean = estimates.iter().map(|estimate| estimate.mean).sum::<f64>() / n;
        let square = |known: &Self, side: usize| {
            known.interval.map(|interval| (interval[side] - known.mean).powi(2))
        };
        let side = |side: usize| {
            let squares: Option<f64> = estimates.iter().map(|known| square(known, side)).sum();
            squares.map(|squares| squares.sqrt() / n)
        };
        let interval = match (side(0), side(1)) {
            (Some(below), Some(above)) if !estimates.is_empty() => {
                Some([mean - below, mean + above])
            }
            _ => None,
        };
        Self { mean, interval, count: estimates.iter().map(|estimate| estimate.count).sum() }
    }
}

/// The 97.5 % quantile of Student's t. Exact for 1 and 2 degrees of freedom; above, the expansion
/// of Abramowitz and Stegun (1964), 26.7.5, which is 0.1 % low at 3 degrees and better at more.
fn student(degrees: usize) -> f64 {
    match degrees {
        0 => f64::INFINITY,
        1 => 12.706_204_736,
        2 => 4.302_652_730,
        _ => {
            let n = degrees as f64;
            let terms = [
                (Z.powi(3) + Z) / 4.0,
                (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0,
                (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0,
                (79.0 * Z.powi(9) + 776.0 * Z.powi(7) + 1482.0 * Z.powi(5)
                    - 1920.0 * Z.powi(3)
                    - 945.0 * Z)
                    / 92_160.0,
            ];
            (1..).zip(terms).fold(Z, |sum, (power, term)| sum + term / n.powi(power))
        }
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
        assert!(close(mean, 3.0) && close(error.unwrap(), 1.080_123) && count == 4);
        assert_eq!(Mean::of(&[5.0]), Mean { mean: 5.0, error: None, count: 1 });
        assert_eq!(Mean::of(&[]), Mean { mean: 0.0, error: None, count: 0 });
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees, quantile) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (99, 1.984)]
        {
            let t = student(degrees);
            assert!((t / quantile - 1.0).abs() < 1.5e-3, "{degrees}: {t}");
        }
    }

    #[test]
    fn scores_of_zero_and_one_have_a_wilson_interval_others_a_students() {
        let shares = Estimate::of_scores(&[1.0, 0.0, 1.0, 1.0]);
        let wilson = Proportion::wilson(3.0, 4);
        assert_eq!((shares.mean, shares.interval), (0.75, Some([wilson.low, wilson.high])));
        // The spread is 0.2, the error 0.1 for four numbers, the quantile of 3 degrees 3.182.
        let parts = Estimate::of_scores(&[0.3, 0.3, 0.6, 0.4]);
        let error = (0.06_f64 / 3.0 / 4.0).sqrt();
        let [low, high] = parts.interval.unwrap();
        assert!(close(parts.mean, 0.4));
        assert!(
            (high - 0.4 - 3.182 * error).abs() < 1e-3 && (0.4 - low - 3.182 * error).abs() < 1e-3
        );
        assert_eq!(Estimate::of_scores(&[0.9, 0.1]).interval, Some([0.0, 1.0]));
        assert_eq!(Estimate::of(&[0.5]).interval, None);
        assert_eq!(Estimate::of_scores(&[]).interval, None);
        // Differences are no shares, and may be below 0.
        let differences = [0.0, -1.0, 0.0, 0.0];
        let expected = Estimate::of(&differences).interval.unwrap();
        assert!(expected[0] < -0.9 && expected[0] > -1.1);
        let found = Estimate::of_scores_from(-1.0, &differences).interval.unwrap();
        assert_eq!(found, [expected[0].max(-1.0), expected[1]]);
    }

    #[test]
    fn a_mean_over_tasks_is_surer_than_each() {
        let task = |mean| Estimate { mean, interval: Some([mean - 0.3, mean + 0.3]), count: 10 };
        let both = Estimate::mean_of(&[task(0.2), task(0.6)]);
        // √(0.3² + 0.3²) / 2.
        assert!(close(both.mean, 0.4) && close(both.interval.unwrap()[1], 0.612_13));
        assert_eq!(both.count, 20);
        // Scores of 0 lie at the end of their interval, and so does their mean.
        let none = Estimate { mean: 0.0, interval: Some([0.0, 0.3]), count: 10 };
        let [low, high] = Estimate::mean_of(&[none; 2]).interval.unwrap();
        assert!(low == 0.0 && close(high, 0.212_13));
        assert_eq!(Estimate::mean_of(&[none, Estimate::of(&[0.5])]).interval, None);
    }
}
