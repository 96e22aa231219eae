/// Shares out `total` tokens by `weights`, each share between `least` and `most`: in proportion where the bounds
/// allow it, what a bound cuts off going to the others in proportion. Whole numbers whose sum is exactly
/// `total`, unless the bounds forbid it; then all of `least` or all of `most`.
///
/// Fractions go to the largest remainders, of equal ones the first.
pub(super) fn apportion(
    total: usize,
    weights: &[f64],
    least: &[usize],
    most: &[usize],
) -> Vec<usize> {
    if total <= least.iter().sum() {
        return least.to_vec();
    }
    if total >= most.iter().sum() {
        return most.to_vec();
    }
    let weights = positive(weights);
    let shares = |factor: f64| -> Vec<f64> {
        let share =
            |index: usize| (weights[index] * factor).clamp(least[index] as f64, most[index] as f64);
        (0..weights.len()).map(share).collect()
    };
    let sum = |factor: f64| shares(factor).iter().sum::<f64>();
    // The factor that uses the total up: the sum grows with it, from all of `least` to all of `most`.
    let (mut low, mut high) = (0.0, 1.0 / weights.iter().copied().fold(0.0, f64::max));
    while sum(high) < total as f64 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if sum(middle) < total as f64 { low = middle } else { high = middle }
    }
    round(&shares(high), total, most)
}

/// Whole numbers for `shares` that add up to `total`, none above `most`.
fn round(shares: &[f64], total: usize, most: &[usize]) -> Vec<usize> {
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
            if left > 0 && whole[index] < most[index] {
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

/// The weights, a small one in place of zero, so that what a bound cuts off always has somewhere to go.
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
        assert_eq!(apportion(10, &[1.0, 2.0, 2.0], &[0; 3], &[99; 3]), [2, 4, 4]);
        // Two thirds each: the fractions go to the first.
        assert_eq!(apportion(2, &[1.0; 3], &[0; 3], &[99; 3]), [1, 1, 0]);
        // What the first may not have goes to the others, two to one.
        assert_eq!(apportion(10, &[7.0, 2.0, 1.0], &[0; 3], &[4, 99, 99]), [4, 4, 2]);
        assert_eq!(apportion(10, &[8.0, 1.0, 1.0], &[0, 2, 2], &[99; 3]), [6, 2, 2]);
        assert_eq!(apportion(9, &[0.0; 3], &[0; 3], &[99; 3]), [3, 3, 3]);
        assert_eq!(apportion(4, &[1.0, 0.0], &[0; 2], &[3, 99]), [3, 1]);
    }

    #[test]
    fn bounds_win() {
        assert_eq!(apportion(3, &[1.0, 1.0], &[2, 3], &[9, 9]), [2, 3]);
        assert_eq!(apportion(30, &[1.0, 1.0], &[2, 3], &[9, 8]), [9, 8]);
    }

    proptest! {
        #[test]
        fn the_sum_is_exact_and_the_bounds_hold(
            entries in prop::collection::vec((0.0..1e6_f64, 0..20_usize, 0..500_usize), 1..40),
            share in 0.0..1.0_f64,
        ) {
            let weights: Vec<f64> = entries.iter().map(|entry| entry.0).collect();
            let least: Vec<usize> = entries.iter().map(|entry| entry.1).collect();
            let most: Vec<usize> = entries.iter().map(|entry| entry.1 + entry.2).collect();
            let (low, high): (usize, usize) = (least.iter().sum(), most.iter().sum());
            let total = low + ((high - low) as f64 * share) as usize;
            let shares = apportion(total, &weights, &least, &most);
            prop_assert_eq!(shares.iter().sum::<usize>(), total);
            for index in 0..shares.len() {
                prop_assert!((least[index]..=most[index]).contains(&shares[index]));
            }
        }
    }
}
