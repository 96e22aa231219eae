//! Softmax attention as the textbook writes it.

use super::Head;

/// Encoding of positions in queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    /// Not at all.
    None,
    /// RoPE: channels `i` and `i + head_dim/2` turn by the angle `position · theta^(-2i/head_dim)`.
    Rotary {
        /// The base of the frequencies.
        theta: f64,
    },
}

impl Encoding {
    /// Encodes `position` into one query or key, `x` `[head_dim]`.
    pub fn encode(&self, x: &[f64], position: usize) -> Vec<f64> {
        let Self::Rotary { theta } = *self else { return x.to_vec() };
        let half = x.len() / 2;
        let mut turned = vec![0.0; x.len()];
        for i in 0..half {
            let angle = position as f64 * theta.powf(-2.0 * i as f64 / x.len() as f64);
            turned[i] = x[i] * angle.cos() - x[i + half] * angle.sin();
            turned[i + half] = x[i + half] * angle.cos() + x[i] * angle.sin();
        }
        turned
    }
}

/// The product of two vectors.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The weights one query `[head_dim]` gives to the keys it sees: `softmax(q · k · scale)`,
/// `[keys]`.
pub fn weights(query: &[f64], keys: &[Vec<f64>], scale: f64) -> Vec<f64> {
    let logits: Vec<f64> = keys.iter().map(|key| dot(query, key) * scale).collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

/// The mean of the values `[keys][head_dim]` under `weights` `[keys]`.
pub fn weighted_mean(weights: &[f64], values: &[Vec<f64>]) -> Vec<f64> {
    let mut mean = vec![0.0; values[0].len()];
    for (weight, value) in weights.iter().zip(values) {
        for (channel, number) in mean.iter_mut().zip(value) {
            *channel += weight * number;
        }
    }
    mean
}

/// Causal attention over one left-padded row, without any cache: what the full cache must give.
///
/// `q` `[query_heads][columns][head_dim]`, `k` and `v` `[kv_heads][columns][head_dim]`, the first
/// `padding` columns being padding. Returns `[query_heads][columns][head_dim]`; a padded column is
/// zero.
pub fn dense(
    q: &[Head],
    k: &[Head],
    v: &[Head],
    padding: usize,
    encoding: Encoding,
    scale: f64,
) -> Vec<Head> {
    let group = q.len() / k.len();
    let mut outputs = Vec::new();
    for (head, queries) in q.iter().enumerate() {
        let (keys, values) = (&k[head / group], &v[head / group]);
        let mut rows = Vec::new();
        for (column, query) in queries.iter().enumerate() {
            if column < padding {
                rows.push(vec![0.0; query.len()]);
                continue;
            }
            let seen: Vec<Vec<f64>> = (padding..=column)
                .map(|other| encoding.encode(&keys[other], other - padding))
                .collect();
            let weights = weights(&encoding.encode(query, column - padding), &seen, scale);
            rows.push(weighted_mean(&weights, &values[padding..=column]));
        }
        outputs.push(rows);
    }
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_share_the_weight() {
        assert_eq!(weights(&[1.0, 2.0], &[vec![3.0, 1.0], vec![3.0, 1.0]], 0.7), [0.5, 0.5]);
    }

    #[test]
    fn rotation_keeps_length_and_depends_on_distance_only() {
        let rope = Encoding::Rotary { theta: 100.0 };
        let (q, k) = ([0.3, -1.2, 0.8, 0.5], [1.0, 0.1, -0.4, 0.9]);
        let dot =
            |i: usize, j: usize| -> f64 { super::dot(&rope.encode(&q, i), &rope.encode(&k, j)) };
        assert!((dot(9, 4) - dot(25, 20)).abs() < 1e-12);
        assert!((dot(9, 4) - dot(9, 5)).abs() > 1e-3);
        let length: f64 = rope.encode(&q, 17).iter().map(|x| x * x).sum();
        assert!((length - q.iter().map(|x| x * x).sum::<f64>()).abs() < 1e-12);
    }
}
