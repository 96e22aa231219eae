//! DuoAttention: heads that look far back keep everything.

/// Entries that each kv head of a layer keeps, by `reach`, `[layers][kv_heads]`.
pub fn keep(
    reach: &[Vec<f64>],
    layer: usize,
    tokens: usize,
    budget: usize,
    seen: usize,
    held: &[usize],
) -> Vec<usize> {
    let all = reach.iter().map(Vec::len).sum::<usize>();
    let streams = tokens.min(budget);
    // Each head that keeps everything costs what the others drop.
    let mut whole = 0;
    while seen > streams
        && whole < all
        && (whole + 1) * seen + (all - whole - 1) * streams <= all * budget
    {
        whole += 1;
    }
    let mut keep = Vec::new();
    for (head, own) in reach[layer].iter().enumerate() {
        let before = reach.iter().enumerate().flat_map(|(other_layer, heads)| {
            heads.iter().enumerate().filter(move |(other, reach)| {
                *reach > own || (*reach == own && (other_layer, *other) < (layer, head))
            })
        });
        let far = seen <= streams || before.count() < whole;
        keep.push(if far { held[head] } else { streams });
    }
    keep
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_three_heads_is_paid_for_by_the_others() {
        // 3 · 40 = 120: one head of 100 and two of 10.
        let reach = [vec![0.2, 0.7], vec![0.5]];
        assert_eq!(keep(&reach, 0, 10, 40, 100, &[100, 100]), [10, 100]);
        assert_eq!(keep(&reach, 1, 10, 40, 100, &[100]), [10]);
        assert_eq!(keep(&reach, 1, 10, 70, 100, &[100]), [100]);
        // A short prompt.
        assert_eq!(keep(&reach, 1, 10, 40, 9, &[9]), [9]);
    }
}
