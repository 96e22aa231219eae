//! Expected Attention and CapKV: what the queries to come will look for, from those that came.

use super::knorm::length;
use super::leverage::solve;
use crate::reference::attention::{dot, weights};
use crate::reference::reduce::ema_merge::cosine;
use crate::reference::{Head, ModelCache};

/// Mean and covariance of the next queries of a query head.
struct Next {
    mean: Vec<f64>,
    /// `[head_dim][head_dim]`
    covariance: Vec<Vec<f64>>,
}

/// The next queries are like those since the last compression, sinks left out, turned by the mean
/// rotation of the next `future` positions.
fn next(cache: &ModelCache, layer: usize, query_head: usize, future: usize) -> Next {
    let channels = cache.settings.head_dim;
    let first = cache.queries_from(layer).max(cache.settings.method.sinks);
    let seen = cache.layers[layer].seen;
    let queries: &[Vec<f64>] =
        cache.layers[layer].queries[query_head].get(first..seen).unwrap_or_default();
    let number = queries.len().max(1) as f64;
    let mut mean = vec![0.0; channels];
    let mut covariance = vec![vec![0.0; channels]; channels];
    for query in queries {
        for (mean, x) in mean.iter_mut().zip(query) {
            *mean += x / number;
        }
    }
    for query in queries {
        for i in 0..channels {
            for j in 0..channels {
                covariance[i][j] += (query[i] - mean[i]) * (query[j] - mean[j]) / number;
            }
        }
    }
    // The rotation is linear: its columns are what becomes of the unit vectors.
    let held = cache.layers[layer].heads.iter().map(Vec::len).max().unwrap_or(0);
    let start = cache.settings.method.next_position(seen, held);
    let mut turn: Head = Vec::new();
    for channel in 0..channels {
        let mut unit = vec![0.0; channels];
        unit[channel] = 1.0;
        let mut column = vec![0.0; channels];
        for position in start..start + future {
            let turned = cache.settings.encoding.encode(&unit, position);
            for (sum, x) in column.iter_mut().zip(turned) {
                *sum += x / future as f64;
            }
        }
        turn.push(column);
    }
    let turned = |x: &[f64]| -> Vec<f64> {
        (0..channels).map(|to| (0..channels).map(|from| turn[from][to] * x[from]).sum()).collect()
    };
    // R Σ Rᵀ: rows first, then columns.
    let rows: Vec<Vec<f64>> = covariance.iter().map(|row| turned(row)).collect();
    let columns: Vec<Vec<f64>> = (0..channels)
        .map(|column| turned(&rows.iter().map(|row| row[column]).collect::<Vec<f64>>()))
        .collect();
    Next { mean: turned(&mean), covariance: columns }
}

/// `[kv_heads][entries]`, zero for sinks.
pub fn scores(cache: &ModelCache, layer: usize, future: usize, epsilon: f64) -> Vec<Vec<f64>> {
    let scale = cache.settings.scale;
    of_heads(cache, layer, future, |next, keys, values| {
        let power = |key: &Vec<f64>| {
            let spread: f64 =
                next.covariance.iter().zip(key).map(|(row, x)| x * dot(row, key)).sum();
            vec![scale * dot(key, &next.mean) + scale * scale * spread / 2.0]
        };
        let powers: Vec<Vec<f64>> = keys.iter().map(power).collect();
        let attention = weights(&[1.0], &powers, 1.0);
        let score = |(weight, value): (f64, &Vec<f64>)| (weight + epsilon) * length(value);
        attention.into_iter().zip(values).map(score).collect()
    })
}

/// CapKV, `[kv_heads][entries]`, zero for sinks.
pub fn capacities(cache: &ModelCache, layer: usize, future: usize, tau: f64) -> Vec<Vec<f64>> {
    of_heads(cache, layer, future, |next, keys, values| {
        let cosines: Vec<f64> = keys.iter().map(|key| cosine(key, &next.mean)).collect();
        let highest = cosines.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> =
            cosines.iter().map(|cosine| (tau * (cosine - highest)).exp()).collect();
        let channels = next.mean.len();
        let mut capacity = vec![vec![0.0; channels]; channels];
        for (i, row) in capacity.iter_mut().enumerate() {
            row[i] = 1.0;
            for (weight, value) in weights.iter().zip(values) {
                for (number, x) in row.iter_mut().zip(value) {
                    *number += (weight + 1e-6) * value[i] * x;
                }
            }
        }
        let score =
            |(weight, value): (&f64, &Vec<f64>)| weight * dot(value, &solve(&capacity, value));
        weights.iter().zip(values).map(score).collect()
    })
}

/// The mean over the query heads of each kv head of what `score` says of the keys and values behind
/// the sinks.
fn of_heads(
    cache: &ModelCache,
    layer: usize,
    future: usize,
    score: impl Fn(&Next, &[Vec<f64>], &[Vec<f64>]) -> Vec<f64>,
) -> Vec<Vec<f64>> {
    let group = cache.settings.query_heads / cache.settings.kv_heads;
    let mut all = Vec::new();
    for (head, entries) in cache.layers[layer].heads.iter().enumerate() {
        let sinks = cache.settings.method.sinks.min(entries.len());
        let mut scores = vec![0.0; entries.len()];
        let keys = &cache.keys(entries)[sinks..];
        let values: Head = entries[sinks..].iter().map(|entry| entry.value.clone()).collect();
        if !keys.is_empty() {
            for query_head in head * group..(head + 1) * group {
                let next = next(cache, layer, query_head, future);
                let found = score(&next, keys, &values);
                for (sum, found) in scores[sinks..].iter_mut().zip(found) {
                    *sum += found / group as f64;
                }
            }
        }
        all.push(scores);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache};
    use crate::reference::{Encoding, Method, ModelCache};

    fn asked(queries: &[f64], keys: &[f64], values: &[f64]) -> ModelCache {
        let mut cache = cache(Method::full(), 9);
        let vectors = |numbers: &[f64]| vec![numbers.iter().map(|x| vec![*x]).collect::<Vec<_>>()];
        cache.begin_prompt();
        cache.prompt(0, &vectors(queries), &vectors(keys), &vectors(values), true);
        cache
    }

    #[test]
    fn queries_of_one_and_three() {
        // Mean 2, variance 1: exp(2k + k²/2) is 1 and e^2.5.
        let cache = asked(&[1.0, 3.0], &[0.0, 1.0], &[1.0, -2.0]);
        let power = 2.5_f64.exp();
        let sum = 1.0 + power;
        assert_near(&scores(&cache, 0, 5, 0.0)[0], &[1.0 / sum, 2.0 * power / sum]);
        assert_near(&scores(&cache, 0, 5, 0.5)[0], &[1.0 / sum + 0.5, 2.0 * power / sum + 1.0]);
    }

    #[test]
    fn capacity_of_two_values() {
        // Cosines −1 and 1: weights e^−2 and 1. A = 1 + e^−2 · 4 + 9, and what ε adds.
        let cache = asked(&[1.0, 3.0], &[-1.0, 1.0], &[2.0, 3.0]);
        let weight = (-2.0_f64).exp();
        let capacity = 1.0 + (weight + 1e-6) * 4.0 + (1.0 + 1e-6) * 9.0;
        assert_near(&capacities(&cache, 0, 5, 1.0)[0], &[weight * 4.0 / capacity, 9.0 / capacity]);
    }

    #[test]
    fn the_mean_of_two_rotations() {
        let mut cache = cache(Method::full(), 9);
        cache.settings.head_dim = 2;
        cache.settings.encoding = Encoding::Rotary { theta: 1.0 };
        let rows = vec![vec![vec![1.0, 0.0]; 3]];
        cache.begin_prompt();
        cache.prompt(0, &rows, &rows, &rows, true);
        let turned = |x: f64, y: f64| [(x.cos() + y.cos()) / 2.0, (x.sin() + y.sin()) / 2.0];
        assert_near(&next(&cache, 0, 0, 2).mean, &turned(3.0, 4.0));
    }
}
