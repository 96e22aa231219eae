//! KVzip and KVCompose: what queries that repeat a prompt give its tokens, and which of all heads'
//! tokens stay.

use super::attention::{Encoding, weights};
use super::margin::{falling, relative};
use super::{Head, attention::weighted_mean};
use std::ops::Range;

/// One kv head of one layer and the query heads that share it; nothing is encoded.
#[derive(Clone, Debug)]
pub struct Repeated<'a> {
    /// Keys of the prompt.
    pub keys: &'a Head,
    /// Its values.
    pub values: &'a Head,
    /// Queries of the tokens that repeat it, one list a query head.
    pub queries: Vec<&'a Head>,
    /// Their keys.
    pub new_keys: &'a Head,
    /// Their values.
    pub new_values: &'a Head,
    /// Encoding of positions.
    pub encoding: Encoding,
    /// Factor on `q · k`.
    pub scale: f64,
}

impl Repeated<'_> {
    /// Attends from the tokens that repeat the prompt to all of it and to the repeating tokens
    /// before: one output per query head and token.
    pub fn outputs(&self) -> Vec<Head> {
        let seen = self.keys.len();
        let of_head = |queries: &&Head| {
            let of_token = |(token, query): (usize, &Vec<f64>)| {
                let query = self.encoding.encode(query, seen + token);
                let keys = self.keys.iter().chain(&self.new_keys[..=token]).enumerate();
                let keys: Head = keys.map(|(at, key)| self.encoding.encode(key, at)).collect();
                let values = self.values.iter().chain(&self.new_values[..=token]);
                let values: Head = values.cloned().collect();
                weighted_mean(&weights(&query, &keys, self.scale), &values)
            };
            queries.iter().enumerate().map(of_token).collect()
        };
        self.queries.iter().map(of_head).collect()
    }

    /// The most that a token of `part` is given: of a softmax over the first `sinks` tokens before
    /// the part, the part, and what repeats it. With `lengths` of the hidden states that ask and of
    /// the values behind the output projection, `[query heads][tokens of the prompt]`, weights are
    /// divided by the one and multiplied by the other.
    pub fn most(
        &self,
        part: Range<usize>,
        sinks: usize,
        lengths: Option<(&[f64], &[Vec<f64>])>,
    ) -> Vec<f64> {
        let seen = self.keys.len();
        let sinks = sinks.min(part.start);
        let chosen: Vec<usize> = (0..sinks).chain(part.clone()).collect();
        let mut most = vec![0.0_f64; part.len()];
        for (head, queries) in self.queries.iter().enumerate() {
            for (token, query) in queries.iter().enumerate() {
                let query = self.encoding.encode(query, seen + token);
                let mut keys = Vec::new();
                for &at in &chosen {
                    keys.push(self.encoding.encode(&self.keys[at], at));
                }
                for (before, key) in self.new_keys[..=token].iter().enumerate() {
                    keys.push(self.encoding.encode(key, seen + before));
                }
                let weights = weights(&query, &keys, self.scale);
                for (index, most) in most.iter_mut().enumerate() {
                    let factor = match lengths {
                        None => 1.0,
                        Some((asks, values)) => values[head][part.start + index] / asks[token],
                    };
                    *most = most.max(weights[sinks + index] * factor);
                }
            }
        }
        most
    }
}

/// The positions that stay of each head of each layer, `scores` `[layers][heads][tokens]`: the
/// first `sinks` of each, and the highest of all others, `keep` a head on average. And how near the
/// next one was.
pub fn kept(scores: &[Vec<Vec<f64>>], sinks: usize, keep: usize) -> (Vec<Vec<Vec<usize>>>, f64) {
    let heads = scores.iter().map(Vec::len).sum::<usize>();
    let mut all = Vec::new();
    for (layer, heads) in scores.iter().enumerate() {
        for (head, tokens) in heads.iter().enumerate() {
            for (token, score) in tokens.iter().enumerate().skip(sinks) {
                all.push((*score, layer, head, token));
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let count = heads * (keep - sinks);
    let gap = relative(all[count - 1].0, all[count].0);
    let mut kept: Vec<Vec<Vec<usize>>> =
        scores.iter().map(|heads| vec![(0..sinks).collect(); heads.len()]).collect();
    for (_, layer, head, token) in &all[..count] {
        kept[*layer][*head].push(*token);
    }
    kept.iter_mut().flatten().for_each(|tokens: &mut Vec<usize>| tokens.sort_unstable());
    (kept, gap)
}

/// The most that tokens which read a prompt again give each of its tokens, part by part: of a
/// softmax over the whole prompt and what is read before them in their part. The mean over the
/// query heads.
pub fn reread(parts: &[Repeated<'_>]) -> Vec<f64> {
    let (heads, seen) = (parts[0].queries.len(), parts[0].keys.len());
    let mut mean = vec![0.0; seen];
    for head in 0..heads {
        let mut most = vec![0.0_f64; seen];
        for part in parts {
            for (token, query) in part.queries[head].iter().enumerate() {
                let query = part.encoding.encode(query, seen + token);
                let keys = part.keys.iter().chain(&part.new_keys[..=token]).enumerate();
                let keys: Head = keys.map(|(at, key)| part.encoding.encode(key, at)).collect();
                let weights = weights(&query, &keys, part.scale);
                most.iter_mut().zip(weights).for_each(|(most, weight)| *most = most.max(weight));
            }
        }
        mean.iter_mut().zip(most).for_each(|(mean, most)| *mean += most / heads as f64);
    }
    mean
}

/// The positions that stay of each head of each layer by composite tokens, `keep` a layer on
/// average; and how near another outcome was.
pub fn composed(scores: &[Vec<Vec<f64>>], keep: usize) -> (Vec<Vec<Vec<usize>>>, f64) {
    let composite = |heads: &Vec<Vec<f64>>| -> Vec<f64> {
        let ranked: Vec<Vec<f64>> = heads
            .iter()
            .map(|scores| falling(scores).into_iter().map(|token| scores[token]).collect())
            .collect();
        let mean = |rank: usize| ranked.iter().map(|head| head[rank]).sum::<f64>();
        (0..ranked[0].len()).map(|rank| mean(rank) / heads.len() as f64).collect()
    };
    let mut layers: Vec<Vec<f64>> = scores.iter().map(composite).collect();
    for rank in 0..layers[0].len() {
        layers[0][rank] = layers.iter().map(|layer| layer[rank]).fold(0.0, f64::max);
    }
    let mut all: Vec<(f64, usize)> = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        all.extend(layer.iter().map(|&score| (score, number)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let count = scores.len() * keep;
    let mut gap = relative(all[count - 1].0, all[count].0);
    let mut kept = Vec::new();
    for (number, heads) in scores.iter().enumerate() {
        let stays = all[..count].iter().filter(|(_, layer)| *layer == number).count().max(1);
        let mut of_heads = Vec::new();
        for scores in heads {
            let mut order = falling(scores);
            if let Some(&next) = order.get(stays) {
                gap = gap.min(relative(scores[order[stays - 1]], scores[next]));
            }
            order.truncate(stays);
            order.sort_unstable();
            of_heads.push(order);
        }
        kept.push(of_heads);
    }
    (kept, gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries of tokens whose keys are zero, to keys of one channel.
    fn repeated<'a>(keys: &'a Head, queries: &[&'a Head], zero: &'a Head) -> Repeated<'a> {
        Repeated {
            keys,
            values: keys,
            queries: queries.to_vec(),
            new_keys: zero,
            new_values: zero,
            encoding: Encoding::None,
            scale: 1.0,
        }
    }

    #[test]
    fn the_prompt_again_by_hand() {
        // One query head gives e¹, e⁰ and e⁰ to itself, the other e⁻¹, e⁰ and e⁰: of 1/(e + 2) and
        // so on the mean.
        let keys: Head = [1.0, 0.0].map(|x| vec![x]).to_vec();
        let (zero, one, less) = (vec![vec![0.0]], vec![vec![1.0]], vec![vec![-1.0]]);
        let part = repeated(&keys, &[&one, &less], &zero);
        let (more, less) = (1.0_f64.exp(), (-1.0_f64).exp());
        let expected = [
            (more / (more + 2.0) + less / (less + 2.0)) / 2.0,
            (1.0 / (more + 2.0) + 1.0 / (less + 2.0)) / 2.0,
        ];
        for (found, expected) in reread(&[part]).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found}, expected {expected}");
        }
    }

    #[test]
    fn layers_share_composites() {
        // The second layer's are 0.8 and 0.5, the first's 0.6 and 0.2, which become 0.8 and 0.5.
        let scores =
            vec![vec![vec![0.9, 0.1], vec![0.3, 0.3]], vec![vec![0.5, 0.7], vec![0.9, 0.5]]];
        let (kept, gap) = composed(&scores, 1);
        assert_eq!(kept, [vec![vec![0], vec![0]], vec![vec![1], vec![0]]]);
        assert_eq!(gap, 0.0, "the two tokens of a head are equal");
    }

    #[test]
    fn one_head_by_hand() {
        // The query gives its own token e⁰, the sink e¹, the tokens of the part e² and e⁰: of the
        // second token before it, nothing.
        let keys: Head = [1.0, 9.0, 2.0, 0.0].map(|x| vec![x]).to_vec();
        let (zero, one) = (vec![vec![0.0]], vec![vec![1.0]]);
        let repeated = repeated(&keys, &[&one], &zero);
        let total = 1.0_f64.exp() + 2.0_f64.exp() + 2.0;
        let found = repeated.most(2..4, 1, None);
        assert!((found[0] - 2.0_f64.exp() / total).abs() < 1e-12, "{found:?}");
        assert!((found[1] - 1.0 / total).abs() < 1e-12, "{found:?}");
        let reach = [vec![0.0, 0.0, 3.0, 5.0]];
        let longer = repeated.most(2..4, 1, Some((&[2.0], &reach)));
        assert!((longer[0] - 1.5 * found[0]).abs() < 1e-12, "{longer:?}");
        assert!((longer[1] - 2.5 * found[1]).abs() < 1e-12, "{longer:?}");
    }

    #[test]
    fn heads_share_what_is_kept() {
        let scores =
            vec![vec![vec![9.0, 0.5, 0.1], vec![0.0, 0.2, 0.3]], vec![vec![0.0, 0.9, 0.8]]];
        let (kept, gap) = kept(&scores, 1, 2);
        assert_eq!(kept, [vec![vec![0, 1], vec![0]], vec![vec![0, 1, 2]]]);
        assert!((gap - 0.4).abs() < 1e-12, "{gap}");
    }
}
