//! What each method thinks an entry is worth.

use super::Head;
use super::attention::weights;
use super::cache::{Entry, LayerCache, Settings};

/// A method, with the parameters its paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Method {
    /// Keeps everything.
    Full,
    /// Keeps the last tokens.
    LocalWindow,
    /// Keeps the first `sinks` tokens and the last ones, and counts positions anew inside the cache.
    StreamingLlm {
        /// First tokens always kept.
        sinks: usize,
    },
    /// The first `sinks` tokens and the last ones, at the positions they were written at.
    SinksAndWindow {
        /// First tokens always kept.
        sinks: usize,
    },
    /// Half of the budget for the last tokens, half for those that received most attention so far.
    H2o {
        /// Attention per query that could see the token, instead of its sum.
        mean: bool,
        /// Whether half of the budget is reserved for the last tokens.
        recent_half: bool,
    },
    /// Keeps what the last query attends to, one set for all heads.
    Tova,
    /// Keeps what the last `window` queries attend to, smoothed along the tokens.
    SnapKv {
        /// Queries that vote; their own tokens are always kept.
        window: usize,
        /// The smoothing.
        pool: Pool,
    },
}

/// Smoothing of scores along the tokens, stride 1, centred.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pool {
    /// The mean over so many neighbours; beyond the ends stand zeros, and they count.
    Average(usize),
    /// The largest of so many neighbours.
    Max(usize),
}

impl Pool {
    /// `scores` `[entries]`, smoothed.
    pub fn apply(&self, scores: &[f64]) -> Vec<f64> {
        let kernel = match *self {
            Self::Average(kernel) | Self::Max(kernel) => kernel,
        };
        let reach = kernel / 2;
        let mut smooth = Vec::new();
        for centre in 0..scores.len() {
            let from = centre.saturating_sub(reach);
            let to = (centre + reach + 1).min(scores.len());
            let neighbours = &scores[from..to];
            smooth.push(match self {
                Self::Average(_) => neighbours.iter().sum::<f64>() / kernel as f64,
                Self::Max(_) => neighbours.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            });
        }
        smooth
    }
}

impl Method {
    /// First tokens that are kept whatever their score.
    pub fn sinks(&self) -> usize {
        match *self {
            Self::StreamingLlm { sinks } | Self::SinksAndWindow { sinks } => sinks,
            _ => 0,
        }
    }

    /// Last tokens that are kept whatever their score, under a budget of `budget`.
    pub fn recent(&self, budget: usize) -> usize {
        match *self {
            Self::H2o { recent_half: true, .. } => budget / 2,
            Self::Tova => 1,
            Self::SnapKv { window, .. } => window,
            _ => 0,
        }
    }

    /// The fewest tokens this method can work with.
    pub fn least_budget(&self) -> usize {
        match *self {
            Self::H2o { .. } => 1,
            _ => (self.sinks() + self.recent(0)).max(1),
        }
    }

    /// Whether keys are encoded at their rank inside the cache, not at the position they were written at.
    pub fn counts_anew(&self) -> bool {
        matches!(self, Self::StreamingLlm { .. })
    }

    /// Whether scores are numbers that no rounding can reorder.
    pub fn scores_are_whole_numbers(&self) -> bool {
        matches!(
            self,
            Self::Full
                | Self::LocalWindow
                | Self::StreamingLlm { .. }
                | Self::SinksAndWindow { .. }
        )
    }

    /// What each held entry is worth, `[kv_heads][entries]`.
    pub fn scores(&self, cache: &LayerCache) -> Vec<Vec<f64>> {
        match *self {
            Self::Full
            | Self::LocalWindow
            | Self::StreamingLlm { .. }
            | Self::SinksAndWindow { .. } => recency(cache),
            Self::H2o { mean, .. } => accumulated_attention(cache, mean),
            Self::Tova => last_query(cache),
            Self::SnapKv { window, pool } => observation_window(cache, window, pool),
        }
    }
}

fn recency(cache: &LayerCache) -> Vec<Vec<f64>> {
    let of_head =
        |entries: &Vec<Entry>| entries.iter().map(|entry| entry.position as f64).collect();
    cache.heads.iter().map(of_head).collect()
}

fn accumulated_attention(cache: &LayerCache, mean: bool) -> Vec<Vec<f64>> {
    let mut scores = Vec::new();
    for entries in &cache.heads {
        let mut of_head = Vec::new();
        for entry in entries {
            let of_group = entry.received.iter().map(|received| {
                let sum: f64 = received.iter().map(|vote| vote.weight).sum();
                if mean { sum / received.len() as f64 } else { sum }
            });
            of_head.push(of_group.sum::<f64>() / entry.received.len() as f64);
        }
        scores.push(of_head);
    }
    scores
}

fn last_query(cache: &LayerCache) -> Vec<Vec<f64>> {
    let last = cache.seen - 1;
    // Every head holds the same positions, because every head has always been given the same scores.
    let mut of_layer = vec![0.0; cache.heads[0].len()];
    for entries in &cache.heads {
        for (score, entry) in of_layer.iter_mut().zip(entries) {
            for received in &entry.received {
                *score += received
                    .iter()
                    .filter(|vote| vote.query == last)
                    .map(|vote| vote.weight)
                    .sum::<f64>();
            }
        }
    }
    for score in &mut of_layer {
        *score /= cache.settings.query_heads as f64;
    }
    vec![of_layer; cache.heads.len()]
}

fn observation_window(cache: &LayerCache, window: usize, pool: Pool) -> Vec<Vec<f64>> {
    let Settings { query_heads, kv_heads, scale, encoding, decode_every, .. } = cache.settings;
    let group = query_heads / kv_heads;
    // The last `window` tokens are kept in any case, and their queries vote on the others. A policy that only
    // ever compresses prompts asks the prompt at hand: a short one votes alone.
    let recent = cache.seen.saturating_sub(window);
    let first = if decode_every.is_none() { recent.max(cache.prompt_start) } else { recent };
    let mut scores = Vec::new();
    for (kv_head, entries) in cache.heads.iter().enumerate() {
        let keys: Head =
            entries.iter().map(|entry| encoding.encode(&entry.key, entry.position)).collect();
        let before = entries.iter().filter(|entry| entry.position < recent).count();
        let mut of_head = vec![0.0; before];
        for query_head in kv_head * group..(kv_head + 1) * group {
            // What the window attends to among the entries held now, whatever was held when its queries came.
            let mut mean = vec![0.0; before];
            for query in first..cache.seen {
                let visible = entries.iter().filter(|entry| entry.position <= query).count();
                let encoded = encoding.encode(&cache.queries[query_head][query], query);
                let weights = weights(&encoded, &keys[..visible], scale);
                for (mean, weight) in mean.iter_mut().zip(weights) {
                    *mean += weight / (cache.seen - first) as f64;
                }
            }
            for (score, smooth) in of_head.iter_mut().zip(pool.apply(&mean)) {
                *score += smooth / group as f64;
            }
        }
        of_head.resize(entries.len(), f64::INFINITY);
        scores.push(of_head);
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_counts_the_zeros_beyond_the_ends() {
        assert_eq!(Pool::Average(3).apply(&[3.0, 6.0, 9.0, 0.0]), [3.0, 6.0, 5.0, 3.0]);
    }

    #[test]
    fn maximum_sees_only_what_is_there() {
        assert_eq!(Pool::Max(3).apply(&[-3.0, -6.0, -9.0, -1.0]), [-3.0, -3.0, -1.0, -1.0]);
    }
}
