//! Tokens that a policy would keep if it saw the future.

/// The share of `kept` that the oracle keeps too. `attention` is what each token of the prompt
/// receives from the tokens to come; `kept` are positions of the prompt, each once. The oracle
/// keeps as many, those with the most; of equal ones the older. 1 where nothing is kept.
pub fn overlap(kept: &[usize], attention: &[f32]) -> f64 {
    if kept.is_empty() {
        return 1.0;
    }
    let mut order: Vec<usize> = (0..attention.len()).collect();
    let before = |a: &usize, b: &usize| attention[*b].total_cmp(&attention[*a]).then(a.cmp(b));
    if kept.len() < order.len() {
        order.select_nth_unstable_by(kept.len(), before);
        order.truncate(kept.len());
    }
    order.sort_unstable();
    let common = kept.iter().filter(|position| order.binary_search(position).is_ok()).count();
    common as f64 / kept.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTENTION: [f32; 6] = [0.4, 0.0, 0.1, 0.3, 0.1, 0.1];

    #[test]
    fn the_oracle_keeps_the_most_attended() {
        // Of two: 0 and 3. Of three: the older of those with 0.1 too.
        for (kept, expected) in [
            (&[0, 3][..], 1.0),
            (&[3, 0], 1.0),
            (&[0, 1], 0.5),
            (&[1, 5], 0.0),
            (&[0, 2, 3], 1.0),
            (&[0, 3, 5], 2.0 / 3.0),
            (&[3, 4, 5], 1.0 / 3.0),
            (&[1], 0.0),
            (&[0], 1.0),
            (&[0, 1, 2, 3, 4, 5], 1.0),
            (&[], 1.0),
        ] {
            assert_eq!(overlap(kept, &ATTENTION), expected, "{kept:?}");
        }
    }
}
