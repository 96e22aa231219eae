//! The masks of MInference and XAttention, as their papers write them: loops over tokens of one
//! sequence without padding.

use briquette::ops::HeadPattern;

use super::Head;
use super::attention::{dot, weights};
use super::margin::falling;

/// Keys that each query of a head sees, `[queries][keys]`. `q` and `k` are `[tokens][head_dim]`,
/// positions encoded.
pub fn mask(pattern: HeadPattern, q: &Head, k: &Head, scale: f64) -> Vec<Vec<bool>> {
    let tokens = q.len();
    let causal = |sees: &dyn Fn(usize, usize) -> bool| -> Vec<Vec<bool>> {
        (0..tokens).map(|i| (0..tokens).map(|j| j <= i && sees(i, j)).collect()).collect()
    };
    match pattern {
        HeadPattern::Dense => causal(&|_, _| true),
        HeadPattern::AShape { first, recent } => causal(&|i, j| j < first || i - j < recent),
        HeadPattern::VerticalSlash { vertical, slash } => {
            let (columns, distances) = lines(q, k, scale, vertical, slash);
            causal(&|i, j| columns.contains(&j) || distances.contains(&(i - j)))
        }
        HeadPattern::Blocks { blocks } => {
            let chosen = pooled(q, k, scale, blocks);
            causal(&|i, j| chosen[i / 64].contains(&(j / 64)))
        }
        HeadPattern::Antidiagonal { stride, threshold } => {
            let chosen = antidiagonal(q, k, scale, stride, threshold);
            causal(&|i, j| chosen[i / 128].contains(&(j / 128)))
        }
    }
}

/// The weights under a mask, `[queries][keys]`: the softmax over the keys a query sees, zero
/// elsewhere.
pub fn masked_weights(mask: &[Vec<bool>], q: &Head, k: &Head, scale: f64) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    for (query, sees) in q.iter().zip(mask) {
        let seen: Vec<usize> = (0..k.len()).filter(|&j| sees[j]).collect();
        let keys: Vec<Vec<f64>> = seen.iter().map(|&j| k[j].clone()).collect();
        let mut row = vec![0.0; k.len()];
        for (&j, weight) in seen.iter().zip(weights(query, &keys, scale)) {
            row[j] = weight;
        }
        all.push(row);
    }
    all
}

/// The places of the highest scores, those of equal ones that stand first.
fn top(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order = falling(scores);
    order.truncate(count);
    order
}

/// MInference, Algorithm 2.
fn lines(
    q: &Head,
    k: &Head,
    scale: f64,
    vertical: usize,
    slash: usize,
) -> (Vec<usize>, Vec<usize>) {
    let tokens = q.len();
    let mut of_columns = vec![0.0; tokens];
    let mut of_distances = vec![0.0; tokens];
    for i in tokens.saturating_sub(64)..tokens {
        for (j, weight) in weights(&q[i], &k[..=i], scale).into_iter().enumerate() {
            of_columns[j] += weight;
            of_distances[i - j] += weight;
        }
    }
    of_columns.iter_mut().take(30).for_each(|score| *score = f64::INFINITY);
    of_distances.iter_mut().take(100).for_each(|score| *score = f64::INFINITY);
    (top(&of_columns, vertical.max(30)), top(&of_distances, slash.max(50)))
}

/// MInference, Algorithm 3.
fn pooled(q: &Head, k: &Head, scale: f64, blocks: usize) -> Vec<Vec<usize>> {
    let means = |x: &Head| -> Head {
        let mean = |block: &[Vec<f64>]| {
            let channels = 0..block[0].len();
            channels
                .map(|c| block.iter().map(|row| row[c]).sum::<f64>() / block.len() as f64)
                .collect()
        };
        x.chunks(64).map(mean).collect()
    };
    let (q, k) = (means(q), means(k));
    let of_block = |i: usize| top(&weights(&q[i], &k[..=i], scale), blocks);
    (0..q.len()).map(of_block).collect()
}

/// XAttention, Algorithm 1. The first block and a query's own are chosen whatever they have, as in
/// its code.
fn antidiagonal(q: &Head, k: &Head, scale: f64, stride: usize, threshold: f64) -> Vec<Vec<usize>> {
    let tokens = q.len();
    let groups = tokens.div_ceil(stride);
    let blocks = tokens.div_ceil(128);
    let mut sums = vec![vec![0.0; blocks]; blocks];
    for a in 0..groups {
        let mut logits = Vec::new();
        for b in 0..=a {
            let mut sum = 0.0;
            for offset in 0..stride {
                let (i, j) = (a * stride + stride - 1 - offset, b * stride + offset);
                if i < tokens && j < tokens {
                    sum += dot(&q[i], &k[j]);
                }
            }
            logits.push((sum * scale / stride as f64).exp());
        }
        let total: f64 = logits.iter().sum();
        for (b, power) in logits.into_iter().enumerate() {
            sums[a * stride / 128][b * stride / 128] += power / total;
        }
    }
    let mut chosen = Vec::new();
    for (block, sums) in sums.iter().enumerate() {
        let wanted = threshold * sums.iter().sum::<f64>();
        let mut of_block = if block == 0 { vec![0] } else { vec![0, block] };
        for next in top(sums, blocks) {
            let sum: f64 = of_block.iter().map(|&b| sums[b]).sum();
            if sum < wanted && !of_block.contains(&next) {
                of_block.push(next);
            }
        }
        chosen.push(of_block);
    }
    chosen
}
