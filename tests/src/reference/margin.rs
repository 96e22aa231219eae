//! Distances of decisions from another outcome.

/// The smallest gap by which any decision could have gone the other way, by what was compared: the
/// kinds suffer differently from rounding. Rounding well below it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margin {
    /// Scores and weights, their difference relative to the larger of the two.
    pub scores: f64,
    /// Cosines and their products, absolute.
    pub cosines: f64,
    /// Tokens shared out by measured weights, before rounding, absolute.
    pub shares: f64,
    /// Numbers on their way to a whole number of quantization steps, absolute, in units of the
    /// number.
    pub steps: f64,
}

impl Default for Margin {
    /// No decision yet.
    fn default() -> Self {
        let none = f64::INFINITY;
        Self { scores: none, cosines: none, shares: none, steps: none }
    }
}

impl Margin {
    /// A decision between scores.
    pub fn score(&mut self, gap: f64) {
        self.scores = self.scores.min(gap);
    }

    /// A decision between cosines.
    pub fn cosine(&mut self, gap: f64) {
        self.cosines = self.cosines.min(gap);
    }

    /// A decision on the rounding of a share.
    pub fn share(&mut self, gap: f64) {
        self.shares = self.shares.min(gap);
    }

    /// A decision on the rounding of a number to a step.
    pub fn step(&mut self, gap: f64) {
        self.steps = self.steps.min(gap);
    }
}

/// The gap between two scores, relative to the larger.
pub fn relative(a: f64, b: f64) -> f64 {
    let larger = a.abs().max(b.abs());
    if larger == 0.0 { 0.0 } else { (a - b).abs() / larger }
}

/// The gap between the lowest score `chosen` and the highest `left`, both in falling order. Where
/// the two are equal (pooling gives neighbours the same score) age decides, and the nearest other
/// scores make the gap.
pub fn border(chosen: &[f64], left: &[f64], gap: fn(f64, f64) -> f64) -> f64 {
    let (Some(&lowest), Some(&highest)) = (chosen.last(), left.first()) else {
        return f64::INFINITY;
    };
    if lowest > highest {
        return gap(lowest, highest);
    }
    let above = chosen.iter().rev().find(|score| **score > lowest);
    let below = left.iter().find(|score| **score < lowest);
    let above = above.map_or(f64::INFINITY, |above| gap(*above, lowest));
    below.map_or(f64::INFINITY, |below| gap(lowest, *below)).min(above)
}

/// The indices of `scores`, the highest first, of equals the first.
pub fn falling(scores: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    order
}

/// The index of the largest of `scores`, the first of equals, and its gap to the next.
pub fn largest(scores: &[f64], gap: fn(f64, f64) -> f64) -> (usize, f64) {
    let order = falling(scores);
    let falling: Vec<f64> = order.iter().map(|index| scores[*index]).collect();
    (order[0], border(&falling[..1], &falling[1..], gap))
}

/// The plain gap.
pub fn absolute(a: f64, b: f64) -> f64 {
    (a - b).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_at_the_border_counts() {
        assert_eq!(border(&[4.0, 3.0], &[2.0, 1.0], relative), 1.0 / 3.0);
        assert_eq!(border(&[4.0, 3.0], &[2.0, 1.0], absolute), 1.0);
        assert_eq!(border(&[4.0, 1.0], &[], relative), f64::INFINITY);
        assert_eq!(border(&[4.0, 2.0], &[2.0, 1.0], relative), 0.5);
    }

    #[test]
    fn the_first_of_equals_is_the_largest() {
        assert_eq!(largest(&[1.0, 3.0, 2.0, 3.0], absolute), (1, 1.0));
        assert_eq!(largest(&[1.0], absolute), (0, f64::INFINITY));
    }
}
