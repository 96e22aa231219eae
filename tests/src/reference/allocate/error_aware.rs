//! CompressKV: more for the layers that a small cache hurts most.

use crate::reference::margin::falling;

/// Bounds of a layer's share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorAware {
    /// The fewest a layer keeps.
    pub least: usize,
    /// The most, in budgets.
    pub most: f64,
}

/// Entries that each layer keeps, `[layers]`: `budget` in the mean, at least `least`, at most
/// `most` budgets and never more than there are.
pub fn keep(errors: &[f64], budget: usize, seen: usize, least: usize, most: f64) -> Vec<usize> {
    let layers = errors.len();
    if seen <= budget {
        return vec![seen; layers];
    }
    let least = least.min(budget);
    let most = ((most * budget as f64).floor() as usize).min(seen);
    let sum: f64 = errors.iter().sum();
    let rest = (layers * budget - layers * least) as f64;
    let mut keep = Vec::new();
    for error in errors {
        // `round` takes halves away from zero.
        let part = (error / sum * rest).round() as usize;
        keep.push((least + part).clamp(least, most));
    }
    let mut order = falling(errors);
    while keep.iter().sum::<usize>() < layers * budget {
        let layer = order.iter().find(|layer| keep[**layer] < most).expect("the mean is below");
        keep[*layer] += 1;
    }
    order.sort_by(|a, b| errors[*a].total_cmp(&errors[*b]).then(a.cmp(b)));
    while keep.iter().sum::<usize>() > layers * budget {
        let layer = order.iter().find(|layer| keep[**layer] > least).expect("the mean is above");
        keep[*layer] -= 1;
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_of_two_and_the_rest_by_error() {
        // 10 a layer: 24 beyond the floor, by 1 : 2 : 3.
        assert_eq!(keep(&[1.0, 2.0, 3.0], 10, 99, 2, 3.0), [6, 10, 14]);
        // 2.67, 21.33 and 0 are 3, 21 and 0, with the floor 5, 23 and 2.
        assert_eq!(keep(&[1.0, 8.0, 0.0], 10, 99, 2, 3.0), [5, 23, 2]);
        // 23 is cut to 20; the three cut go to the next in error.
        assert_eq!(keep(&[1.0, 8.0, 0.0], 10, 99, 2, 2.0), [8, 20, 2]);
    }

    #[test]
    fn rounding_is_made_up_for() {
        // 3.4, 3.4 and 5.2 are one too few: the largest error gets it.
        assert_eq!(keep(&[3.4, 3.4, 5.2], 4, 99, 0, 3.0), [3, 3, 6]);
        // Halves away from zero: 4.5, 4.5, 1.5, 1.5 are two too many, taken from the smallest
        // error, the first of equals as long as it has any.
        assert_eq!(keep(&[3.0, 3.0, 1.0, 1.0], 3, 99, 0, 3.0), [5, 5, 0, 2]);
        // A budget below the floor.
        assert_eq!(keep(&[1.0, 5.0], 4, 99, 32, 3.0), [4, 4]);
    }
}
