/// A stretch of numbers on an axis, and its marks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    pub(super) ticks: Vec<f64>,
}

impl Scale {
    /// Scale from the first to the last of these marks.
    pub(super) fn of_ticks(ticks: Vec<f64>) -> Self {
        let (low, high) = (ticks.first().copied(), ticks.last().copied());
        Self { low: low.unwrap_or(0.0), high: high.unwrap_or(1.0), ticks }
    }

    /// Scale from the least of these numbers to the largest, with about five round marks between
    /// them.
    pub(super) fn within(numbers: impl Iterator<Item = f64> + Clone) -> Self {
        let around = Self::around(numbers.clone());
        let finite = || numbers.clone().filter(|number| number.is_finite());
        let (low, high) =
            (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
        if low >= high {
            return around;
        }
        let room = 1e-9 * (high - low);
        let inside = |tick: &f64| (low - room..=high + room).contains(tick);
        Self { low, high, ticks: around.ticks.into_iter().filter(inside).collect() }
    }

    /// Around these numbers, with about five round marks; those at the ends are marks.
    pub(super) fn around(numbers: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for number in numbers.filter(|number| number.is_finite()) {
            (low, high) = (low.min(number), high.max(number));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if high - low < 1e-9 * high.abs().max(1e-3) {
            let pad = if low == 0.0 { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (low - pad, high + pad);
        }
        let step = round_up((high - low) / 5.0);
        let (first, last) = ((low / step).floor() as i64, (high / step).ceil() as i64);
        Self::of_ticks((first..=last).map(|i| i as f64 * step).collect())
    }

    /// Place of a number, from 0 at the lower to 1 at the upper end. Numbers beyond them stand at
    /// them.
    pub(super) fn place(&self, number: f64) -> f64 {
        let span = self.high - self.low;
        if span > 0.0 { ((number - self.low) / span).clamp(0.0, 1.0) } else { 0.5 }
    }
}

/// The next of 1, 2, 5, 10, 20, …
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|m| m * power)
        .find(|round| *round >= step * 0.999)
        .unwrap_or(10.0 * power)
}

/// A number for people: about three digits, and SI-like suffixes from ten thousand.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if !value.is_finite() => return "–".into(),
        0.0 => return "0".into(),
        _ if size >= 1e9 => return format!("{}G", trimmed(format!("{:.1}", value / 1e9))),
        _ if size >= 1e6 => return format!("{}M", trimmed(format!("{:.1}", value / 1e6))),
        _ if size >= 1e4 => return format!("{}k", trimmed(format!("{:.1}", value / 1e3))),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ if size >= 0.0095 => format!("{value:.3}"),
        _ => return format!("{value:.1e}"),
    };
    trimmed(text)
}

fn trimmed(text: String) -> String {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_hold_the_numbers() {
        for (numbers, ticks) in [
            (vec![0.03, 0.97], vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
            (vec![3.1, 3.9], vec![3.0, 3.2, 3.4, 3.6, 3.8, 4.0]),
            (vec![-40.0, 60.0], vec![-40.0, -20.0, 0.0, 20.0, 40.0, 60.0]),
        ] {
            let scale = Scale::around(numbers.iter().copied());
            assert_eq!(scale.ticks.len(), ticks.len(), "{scale:?}");
            assert!(scale.ticks.iter().zip(&ticks).all(|(a, b)| (a - b).abs() < 1e-9), "{scale:?}");
        }
    }

    #[test]
    fn an_axis_may_end_with_its_numbers() {
        let scale = Scale::within([0.0, 3.0, 7.0].into_iter());
        assert_eq!(scale, Scale { low: 0.0, high: 7.0, ticks: vec![0.0, 2.0, 4.0, 6.0] });
        assert_eq!(Scale::within([2.0].into_iter()), Scale::around([2.0].into_iter()));
    }

    #[test]
    fn one_number_no_number_and_no_number_at_all_have_a_scale() {
        for numbers in [vec![], vec![0.0], vec![-7.0], vec![1e-12], vec![f64::NAN, f64::INFINITY]] {
            let scale = Scale::around(numbers.iter().copied());
            assert!(scale.high > scale.low && scale.ticks.len() < 12, "{numbers:?}: {scale:?}");
            assert!((0.0..=1.0).contains(&scale.place(0.3)));
        }
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 1.0, 0.25, 2.5, 12.34, 123.4, 4096.0, 131_072.0, 2e6, 0.001].map(short);
        assert_eq!(
            texts,
            ["0", "1", "0.25", "2.5", "12.3", "123", "4096", "131.1k", "2M", "1.0e-3"]
        );
    }
}
