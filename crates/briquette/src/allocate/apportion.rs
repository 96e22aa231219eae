use crate::view::Bounds;

/// Distributes `bounds.total` tokens in proportion to `weights`, each share within the bounds. What
/// a bound cuts off goes to the other shares in proportion. Returns whole numbers that sum to
/// exactly the total, unless the bounds forbid it: then all are the minimum or all the maximum.
///
/// Rounding follows the largest remainders, the first of equal ones.
pub(super) fn apportion(weights: &[f64], bounds: Bounds) -> Vec<usize> {
    let Bounds { total, least, most } = bounds;
    if total <= least.saturating_mul(weights.len()) {
        return vec![least; weights.len()];
    }
    if total >= most.saturating_mul(weights.len()) {
        return vec![most; weights.len()];
    }
    let weights = positive(weights);
    let factor = factor(&weights, bounds);
    let share = |weight: &f64| (weight * factor).clamp(least as f64, most as f64);
    let shares: Vec<f64> = weights.iter().map(share).collect();
    round(&shares, total, most)
}

/// Factor by which the weights are multiplied to become shares that sum to the total.
///
/// The sum of the shares is piecewise linear in the factor: each share grows from the minimum to
/// the maximum between two breakpoints. The factor is found by walking over these breakpoints in
/// order.
fn factor(weights: &[f64], Bounds { total, least, most }: Bounds) -> f64 {
    let (total, least, most) = (total as f64, least as f64, most as f64);
    // The weights by size, the largest first: they leave the minimum, and reach the maximum, in
    // this order.
    let mut sorted = weights.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    // How many have left the least and reached the most, and the weight of those in between.
    let (mut left, mut reached, mut between) = (0, 0, 0.0_f64);
    loop {
        let leaves = sorted.get(left).map_or(f64::INFINITY, |weight| least / weight);
        let reaches = sorted.get(reached).map_or(f64::INFINITY, |weight| most / weight);
        let next = leaves.min(reaches);
        let fixed = reached as f64 * most + (sorted.len() - left) as f64 * least;
        if left > reached && (next.is_infinite() || fixed + between * next >= total) {
            return (total - fixed) / between;
        }
        if next.is_infinite() {
            // Nobody is between the bounds any more, as far as rounding can tell.
            return total / sorted.iter().sum::<f64>();
        }
        if leaves <= reaches {
            between += sorted[left];
            left += 1;
        } else {
            reached += 1;
            // Summed anew, so that what rounding leaves of large weights does not hide small ones.
            between = sorted[reached..left].iter().sum();
        }
    }
}

/// Rounds `shares` to whole numbers that sum to `total`, none above `most`.
fn round(shares: &[f64], total: usize, most: usize) -> Vec<usize> {
    // Sums of fractions are off by less than these.
    const SLACK: f64 = 1e-9;
    const STEPS: f64 = (1 << 20) as f64;
    let mut whole: Vec<usize> = shares.iter().map(|share| (share + SLACK) as usize).collect();
    let remainder = |index: usize| ((shares[index] - whole[index] as f64) * STEPS) as i64;
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by_key(|&index| (-remainder(index), index));
    let mut left = total.saturating_sub(whole.iter().sum());
    while left > 0 {
        let before = left;
        for &index in &order {
            if left > 0 && whole[index] < most {
                whole[index] += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    whole
}

/// Replaces weights of zero by a small one, so that tokens cut off by a bound always have somewhere
/// to go.
fn positive(weights: &[f64]) -> Vec<f64> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return vec![1.0; weights.len()];
    }
    weights.iter().map(|&weight| weight.max(1e-12 * largest)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_are_in_proportion() {
        assert_eq!(apportion(&[1.0, 2.0, 2.0], bounds(10, 0, 99)), [2, 4, 4]);
        // Two thirds each: the fractions go to the first.
        assert_eq!(apportion(&[1.0; 3], bounds(2, 0, 99)), [1, 1, 0]);
        // What the first may not have goes to the others, two to one.
        assert_eq!(apportion(&[7.0, 2.0, 1.0], bounds(7, 0, 4)), [4, 2, 1]);
        assert_eq!(apportion(&[8.0, 1.0, 1.0], bounds(10, 2, 99)), [6, 2, 2]);
        assert_eq!(apportion(&[0.0; 3], bounds(9, 0, 99)), [3, 3, 3]);
        assert_eq!(apportion(&[1.0, 0.0], bounds(4, 0, 3)), [3, 1]);
    }

    #[test]
    fn bounds_win() {
        assert_eq!(apportion(&[1.0, 1.0], bounds(3, 2, 9)), [2, 2]);
        assert_eq!(apportion(&[1.0, 1.0], bounds(30, 2, 9)), [9, 9]);
    }

    fn bounds(total: usize, least: usize, most: usize) -> Bounds {
        Bounds { total, least, most }
    }

    /// Factor found by bisection.
    fn bisected(weights: &[f64], bounds: Bounds) -> f64 {
        let share = |weight: f64, factor: f64| {
            (weight * factor).clamp(bounds.least as f64, bounds.most as f64)
        };
        let sum = |factor: f64| weights.iter().map(|&weight| share(weight, factor)).sum::<f64>();
        let (mut low, mut high) = (0.0, 1e30);
        for _ in 0..300 {
            let middle = (low + high) / 2.0;
            if sum(middle) < bounds.total as f64 { low = middle } else { high = middle }
        }
        high
    }

    proptest! {
        #[test]
        fn the_sum_is_exact_and_the_bounds_hold(
            weights in prop::collection::vec(prop_oneof![0.0..1e6_f64, 0.0..1.0_f64], 1..40),
            least in 0..20_usize,
            spread in 1..500_usize,
            share in 0.0..1.0_f64,
        ) {
            let (low, high) = (least * weights.len(), (least + spread) * weights.len());
            let total = low + ((high - low) as f64 * share) as usize;
            let bounds = bounds(total, least, least + spread);
            let shares = apportion(&weights, bounds);
            prop_assert_eq!(shares.iter().sum::<usize>(), total);
            for &share in &shares {
                prop_assert!((bounds.least..=bounds.most).contains(&share));
            }
            if (low + 1..high).contains(&total) {
                let weights = positive(&weights);
                let (factor, expected) = (factor(&weights, bounds), bisected(&weights, bounds));
                for weight in weights {
                    let of = |factor: f64| {
                        (weight * factor).clamp(bounds.least as f64, bounds.most as f64)
                    };
                    prop_assert!((of(factor) - of(expected)).abs() < 1e-6);
                }
            }
        }
    }
}
