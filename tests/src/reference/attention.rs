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
    softmax(keys.iter().map(|key| dot(query, key) * scale).collect())
}

fn softmax(logits: Vec<f64>) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

/// What some models do to scores and weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kind {
    /// A score becomes cap · tanh(score / cap).
    pub softcap: Option<f64>,
    /// A logit of each query head that has a share of the weights and no value; none if empty.
    pub sinks: Vec<f64>,
    /// A slope of each query head: slope · distance is subtracted from a score; none if empty.
    pub slopes: Vec<f64>,
    /// Positions that a query sees, its own the last.
    pub window: Option<usize>,
    /// Positions of a chunk, in which a query sees those up to its own.
    pub chunk: Option<usize>,
}

impl Kind {
    /// Whether a query at a position sees one that is not behind it.
    pub fn sees(&self, at: usize, position: usize) -> bool {
        self.window.is_none_or(|window| at - position < window)
            && self.chunk.is_none_or(|chunk| at / chunk == position / chunk)
    }

    /// The weights that a query `[head_dim]` of `head`, at a position, gives to `keys` at these
    /// `positions`, none of them behind its own.
    pub fn weights(
        &self,
        head: usize,
        (query, at): (&[f64], usize),
        (keys, positions): (&[Vec<f64>], &[usize]),
        scale: f64,
    ) -> Vec<f64> {
        let slope = self.slopes.get(head).copied().unwrap_or(0.0);
        let logit = |(key, position): (&Vec<f64>, &usize)| {
            let distance = at - position;
            if !self.sees(at, *position) {
                return f64::NEG_INFINITY;
            }
            let score = dot(query, key) * scale;
            let score = self.softcap.map_or(score, |cap| cap * (score / cap).tanh());
            score - slope * distance as f64
        };
        let mut logits: Vec<f64> = keys.iter().zip(positions).map(logit).collect();
        logits.extend(self.sinks.get(head));
        let mut weights = softmax(logits);
        weights.truncate(keys.len());
        weights
    }
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
    fn kinds_by_hand() {
        let keys = [vec![4.0], vec![4.0], vec![0.0]];
        let of = |kind: Kind| kind.weights(0, (&[1.0], 5), (&keys, &[1, 4, 5]), 1.0);
        let near = |found: Vec<f64>, parts: [f64; 3], more: f64| {
            let total = parts.iter().sum::<f64>() + more;
            for (found, part) in found.iter().zip(parts) {
                assert!((found - part / total).abs() < 1e-12, "{found}, {part} of {total}");
            }
        };
        let high = 4.0_f64.exp();
        near(of(Kind::default()), [high, high, 1.0], 0.0);
        near(of(Kind { window: Some(2), ..Kind::default() }), [0.0, high, 1.0], 0.0);
        near(of(Kind { sinks: vec![4.0], ..Kind::default() }), [high, high, 1.0], high);
        let capped = (2.0 * 2.0_f64.tanh()).exp();
        near(of(Kind { softcap: Some(2.0), ..Kind::default() }), [capped, capped, 1.0], 0.0);
        let sloped = [2.0_f64.exp(), 3.5_f64.exp(), 1.0];
        near(of(Kind { slopes: vec![0.5], ..Kind::default() }), sloped, 0.0);
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
