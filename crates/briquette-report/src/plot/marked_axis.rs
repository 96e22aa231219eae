/// An axis to the right with the marks it is given, such as budgets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MarkedAxis {
    /// Below the marks: what they are, with the unit.
    pub(crate) label: String,
    /// Numbers from small to large, and the name of each.
    pub(crate) marks: Vec<(f64, String)>,
}

impl MarkedAxis {
    /// Both ends: half a step beyond the first and the last mark.
    fn ends(&self) -> (f64, f64) {
        let (Some((first, _)), Some((last, _))) = (self.marks.first(), self.marks.last()) else {
            return (0.0, 1.0);
        };
        let steps = self.marks.len().saturating_sub(1);
        let room = if last > first { 0.5 * (last - first) / steps as f64 } else { 0.5 };
        (first - room, last + room)
    }

    /// Place of a number, from 0 at the left to 1 at the right end.
    pub(super) fn place(&self, number: f64) -> f64 {
        let (low, high) = self.ends();
        ((number - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// The share of the axis between the two marks that are nearest to each other; all of it where
    /// there is one.
    pub(super) fn least_step(&self) -> f64 {
        let places: Vec<f64> = self.marks.iter().map(|(number, _)| self.place(*number)).collect();
        places.windows(2).map(|pair| pair[1] - pair[0]).fold(1.0, f64::min)
    }

    /// The marks whose names do not touch the name before, where a character takes such a share of
    /// the axis.
    pub(super) fn named(&self, character: f64) -> Vec<(f64, &str)> {
        let mut reached = f64::NEG_INFINITY;
        let mut named = Vec::new();
        for (number, name) in &self.marks {
            let (place, half) =
                (self.place(*number), 0.5 * character * (1.0 + name.chars().count() as f64));
            if place - half >= reached {
                reached = place + half;
                named.push((place, name.as_str()));
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(numbers: &[f64]) -> MarkedAxis {
        let marks = numbers.iter().map(|number| (*number, number.to_string())).collect();
        MarkedAxis { label: String::new(), marks }
    }

    #[test]
    fn numbers_stand_where_they_are() {
        let three = axis(&[6.0, 7.0, 9.0]);
        // From 5.25 to 9.75.
        let places = [6.0, 7.0, 9.0].map(|number| three.place(number) * 4.5);
        assert!(places.iter().zip([0.75, 1.75, 3.75]).all(|(a, b)| (a - b).abs() < 1e-12));
        assert!((three.least_step() - 1.0 / 4.5).abs() < 1e-12);
        assert_eq!(axis(&[3.0]).place(3.0), 0.5);
        assert_eq!((axis(&[]).place(0.5), axis(&[]).least_step()), (0.5, 1.0));
    }

    #[test]
    fn names_that_would_touch_are_left_out() {
        let four = axis(&[1.0, 2.0, 3.0, 10.0]);
        let names = |character| four.named(character).iter().map(|(_, name)| *name).collect();
        let all: Vec<&str> = names(0.01);
        assert_eq!(all, ["1", "2", "3", "10"]);
        let few: Vec<&str> = names(0.08);
        assert_eq!(few, ["1", "3", "10"]);
    }
}
