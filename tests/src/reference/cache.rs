//! The cache of one sequence in one layer.

use super::attention::{Encoding, weighted_mean, weights};
use super::{Head, Method};

/// What stays the same while a cache lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Query heads.
    pub query_heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Channels a head.
    pub head_dim: usize,
    /// Factor on `q · k`.
    pub scale: f64,
    /// How positions enter.
    pub encoding: Encoding,
    /// What to keep.
    pub method: Method,
    /// How much of it.
    pub budget: Budget,
    /// When to compress while a prompt arrives.
    pub prefill: Prefill,
    /// Compress after every so many decoded tokens.
    pub decode_every: Option<usize>,
}

/// How much may be kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So many tokens.
    Tokens(usize),
    /// So large a share of the tokens seen.
    Ratio(f64),
}

/// When a prompt is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefill {
    /// Not at all.
    Never,
    /// When it is complete.
    AtEnd,
    /// After each of its chunks.
    EveryChunk,
}

/// One cached token of one kv head, and everything that ever happened to it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The position it was written at.
    pub position: usize,
    /// Its key, before position encoding, `[head_dim]`.
    pub key: Vec<f64>,
    /// Its value, `[head_dim]`.
    pub value: Vec<f64>,
    /// Every weight it ever received, `[query head of the group][query that saw it]`.
    pub received: Vec<Vec<Vote>>,
}

/// A weight that an entry received.
#[derive(Clone, Copy, Debug)]
pub struct Vote {
    /// The position of the query that gave it.
    pub query: usize,
    /// The attention weight.
    pub weight: f64,
}

/// The cache of one sequence in one layer.
#[derive(Clone, Debug)]
pub struct LayerCache {
    /// What stays the same.
    pub settings: Settings,
    /// What each kv head holds, in the order of positions.
    pub heads: Vec<Vec<Entry>>,
    /// Every query that ever came, before position encoding, `[query_heads][seen][head_dim]`.
    pub queries: Vec<Head>,
    /// Tokens seen so far: the position of the next one.
    pub seen: usize,
    /// The position at which the current prompt began.
    pub prompt_start: usize,
    /// Tokens decoded since the last prompt or the last compression in decoding.
    pub decoded: usize,
    /// How close a selection came to another outcome so far: the smallest gap between the lowest score kept
    /// and the highest evicted, relative to the larger of the two. Rounding well below it changes nothing.
    pub margin: f64,
}

impl LayerCache {
    /// An empty cache.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            heads: vec![Vec::new(); settings.kv_heads],
            queries: vec![Vec::new(); settings.query_heads],
            seen: 0,
            prompt_start: 0,
            decoded: 0,
            margin: f64::INFINITY,
        }
    }

    /// A prompt begins here.
    pub fn begin_prompt(&mut self) {
        self.prompt_start = self.seen;
        self.decoded = 0;
    }

    /// Some tokens of the prompt; `last` if they complete it.
    ///
    /// `q` `[query_heads][new][head_dim]`, `k` and `v` `[kv_heads][new][head_dim]`; returns
    /// `[query_heads][new][head_dim]`.
    pub fn prompt(&mut self, q: &[Head], k: &[Head], v: &[Head], last: bool) -> Vec<Head> {
        let outputs = self.attend(q, k, v);
        match self.settings.prefill {
            Prefill::EveryChunk => self.compress(),
            Prefill::AtEnd if last => self.compress(),
            _ => {}
        }
        outputs
    }

    /// One decoded token; shapes as in [`prompt`](Self::prompt).
    pub fn decode(&mut self, q: &[Head], k: &[Head], v: &[Head]) -> Vec<Head> {
        let outputs = self.attend(q, k, v);
        self.decoded += 1;
        if self.settings.decode_every == Some(self.decoded) {
            self.decoded = 0;
            self.compress();
        }
        outputs
    }

    /// The positions each kv head holds.
    pub fn kept_positions(&self) -> Vec<Vec<usize>> {
        let of_head = |entries: &Vec<Entry>| entries.iter().map(|entry| entry.position).collect();
        self.heads.iter().map(of_head).collect()
    }

    /// The most this row may hold now.
    pub fn budget(&self) -> usize {
        match self.settings.budget {
            Budget::Tokens(tokens) => tokens,
            Budget::Ratio(ratio) => ((ratio * self.seen as f64).floor() as usize)
                .max(self.settings.method.least_budget()),
        }
    }

    fn attend(&mut self, q: &[Head], k: &[Head], v: &[Head]) -> Vec<Head> {
        let Settings { query_heads, kv_heads, scale, encoding, method, .. } = self.settings;
        let group = query_heads / kv_heads;
        let new = q[0].len();

        for head in 0..kv_heads {
            for token in 0..new {
                self.heads[head].push(Entry {
                    position: self.seen + token,
                    key: k[head][token].clone(),
                    value: v[head][token].clone(),
                    received: vec![Vec::new(); group],
                });
            }
        }

        let mut outputs = vec![Vec::new(); query_heads];
        for query_head in 0..query_heads {
            let entries = &mut self.heads[query_head / group];
            let old = entries.len() - new;
            let place = |rank: usize, entry: &Entry| {
                if method.counts_anew() { rank } else { entry.position }
            };
            let places: Vec<usize> =
                entries.iter().enumerate().map(|(rank, entry)| place(rank, entry)).collect();
            let keys: Head = entries
                .iter()
                .zip(&places)
                .map(|(entry, place)| encoding.encode(&entry.key, *place))
                .collect();
            let values: Head = entries.iter().map(|entry| entry.value.clone()).collect();

            self.queries[query_head].extend_from_slice(&q[query_head]);
            for token in 0..new {
                let query = encoding.encode(&q[query_head][token], places[old + token]);
                // A token sees what was there before the call, and the call's own tokens up to itself.
                let visible = old + token + 1;
                let weights = weights(&query, &keys[..visible], scale);
                outputs[query_head].push(weighted_mean(&weights, &values[..visible]));
                for (entry, weight) in entries.iter_mut().zip(weights) {
                    entry.received[query_head % group]
                        .push(Vote { query: self.seen + token, weight });
                }
            }
        }
        self.seen += new;
        outputs
    }

    fn compress(&mut self) {
        let method = self.settings.method;
        let budget = self.budget();
        if method == Method::Full || self.heads[0].len() <= budget {
            return;
        }
        let scores = method.scores(self);
        for (entries, scores) in self.heads.iter_mut().zip(scores) {
            let (kept, margin) = select(&scores, budget, method.sinks(), method.recent(budget));
            *entries = kept.iter().map(|index| entries[*index].clone()).collect();
            if !method.scores_are_whole_numbers() {
                self.margin = self.margin.min(margin);
            }
        }
    }
}

/// Picks `budget` of the entries: the first `sinks`, the last `recent`, then the highest scores, the older of
/// two equal ones first. Returns the indices in order, and the margin (see [`LayerCache::margin`]).
fn select(scores: &[f64], budget: usize, sinks: usize, recent: usize) -> (Vec<usize>, f64) {
    let entries = scores.len();
    let is_protected = |index: &usize| *index < sinks || *index + recent >= entries;
    let (mut kept, mut rest): (Vec<usize>, Vec<usize>) = (0..entries).partition(is_protected);
    rest.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));

    let chosen = budget - kept.len();
    let margin = margin(scores, &rest[..chosen], &rest[chosen..]);
    kept.extend(&rest[..chosen]);
    kept.sort();
    (kept, margin)
}

/// The gap between the lowest score chosen and the highest left; both in falling order. Where they are equal
/// (max pooling gives neighbours the same score) age decides, and the nearest other scores make the gap.
fn margin(scores: &[f64], chosen: &[usize], left: &[usize]) -> f64 {
    let (Some(lowest), Some(highest)) = (chosen.last(), left.first()) else { return f64::INFINITY };
    let (lowest, highest) = (scores[*lowest], scores[*highest]);
    let gap = |higher: f64, lower: f64| (higher - lower) / higher.abs().max(lower.abs());
    if lowest > highest {
        return gap(lowest, highest);
    }
    let above = chosen.iter().rev().map(|index| scores[*index]).find(|score| *score > lowest);
    let below = left.iter().map(|index| scores[*index]).find(|score| *score < lowest);
    let above = above.map_or(f64::INFINITY, |above| gap(above, lowest));
    below.map_or(f64::INFINITY, |below| gap(lowest, below)).min(above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_entries_come_first_and_the_older_of_equals_wins() {
        let scores = [0.0, 5.0, 1.0, 5.0, 5.0, 0.0, 0.1];
        assert_eq!(select(&scores, 4, 1, 1).0, [0, 1, 3, 6]);
        assert_eq!(select(&scores, 5, 0, 0).0, [1, 2, 3, 4, 6]);
        assert_eq!(select(&scores, 2, 1, 1).0, [0, 6]);
    }

    #[test]
    fn margin_is_the_gap_at_the_border() {
        assert_eq!(select(&[4.0, 1.0, 3.0, 2.0], 2, 0, 0).1, 1.0 / 3.0);
        assert_eq!(select(&[4.0, 1.0], 2, 0, 0).1, f64::INFINITY);
        assert_eq!(select(&[4.0, 2.0, 2.0, 1.0], 2, 0, 0).1, 0.5);
    }
}
