//! HeadKV: a part of every head's budget goes to the heads that a profile scores highest.

use super::apportion;

/// Entries that each kv head keeps beyond the protected ones, `[layers][kv_heads]`: `body` in the
/// mean, at most `room`. `scores` are `[layers][query_heads]`.
pub fn bodies(
    scores: &[Vec<f64>],
    kv_heads: usize,
    body: usize,
    room: usize,
    beta: f64,
) -> Vec<Vec<usize>> {
    let mut of_heads = Vec::new();
    for scores in scores {
        let group = scores.len() / kv_heads;
        let mean = |scores: &[f64]| scores.iter().sum::<f64>() / group as f64;
        of_heads.extend(scores.chunks(group).map(mean));
    }
    let (count, sum) = (of_heads.len(), of_heads.iter().sum::<f64>());
    let (total, body) = (body * count, body as f64);
    let weight =
        |score: &f64| body * (1.0 - 1.0 / beta) + score / sum * (body / beta) * count as f64;
    let weights: Vec<f64> = of_heads.iter().map(weight).collect();
    let (bodies, _) = apportion(total, &weights, &vec![0; count], &vec![room; count]);
    bodies.chunks(kv_heads).map(<[usize]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_eight_is_shared_out() {
        // kv heads score 1 3 · 2 2, an eighth each: 4 for each, and of 16 more 2 6 · 4 4.
        let scores = [vec![0.0, 2.0, 3.0, 3.0], vec![2.0, 2.0, 1.0, 3.0]];
        assert_eq!(bodies(&scores, 2, 8, 40, 2.0), [[6, 10], [8, 8]]);
        // No more than 9 are there; 23 for the others by 6 : 8 : 8 is 6.27, 8.36, 8.36.
        assert_eq!(bodies(&scores, 2, 8, 9, 2.0), [[6, 9], [9, 8]]);
    }
}
