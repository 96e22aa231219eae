//! SnapKV, TOVA, CompressKV: what the last queries attend to.

use crate::reference::margin::falling;
use crate::reference::profile::HeadScore;
use crate::reference::{Entry, LayerCache, ModelCache, Settings};

/// The scores of an observation window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Queries that vote; their own tokens stand aside.
    pub window: usize,
    /// Smoothing.
    pub pool: Option<Pool>,
    /// Query heads whose votes count.
    pub heads: Heads,
}

/// Query heads over which a score is the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Heads {
    /// Those of the kv head.
    Group,
    /// All of the layer: one set of tokens for all kv heads.
    Layer,
    /// Some of the layer, by a profile: one set of tokens for all kv heads.
    Retrieval {
        /// The score that they are chosen by.
        scores: HeadScore,
        /// Number of heads to choose.
        pick: Pick,
    },
}

/// Number of chosen heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// So many.
    Top(usize),
    /// Those above a share of the sum of the layer's scores.
    Adaptive {
        /// The share.
        threshold: f64,
        /// So many, even if fewer are above.
        least: usize,
    },
}

impl Pick {
    /// The indices of the chosen, highest score first.
    pub fn choose(&self, scores: &[f64]) -> Vec<usize> {
        let mut order = falling(scores);
        let count = match *self {
            Self::Top(count) => count,
            Self::Adaptive { threshold, least } => {
                let sum: f64 = scores.iter().sum();
                let above = |score: &&f64| sum > 0.0 && **score / sum > threshold;
                scores.iter().filter(above).count().max(least)
            }
        };
        order.truncate(count);
        order
    }
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

/// Smooths `scores`, if there is a pool.
pub fn smooth(scores: &[f64], pool: Option<Pool>) -> Vec<f64> {
    pool.map_or_else(|| scores.to_vec(), |pool| pool.apply(scores))
}

/// Number of a head's entries that are not among the last `window` tokens.
pub fn outside(layer: &LayerCache, entries: &[Entry], window: usize) -> usize {
    let recent = layer.seen.saturating_sub(window);
    entries.iter().filter(|entry| entry.position < recent).count()
}

/// The weights that the last `window` queries give to the entries held now, whatever was held when
/// they came; zero where a query cannot see. `[query_heads][queries][entries of its kv head]`.
pub fn window_weights(cache: &ModelCache, layer: usize, window: usize) -> Vec<Vec<Vec<f64>>> {
    let LayerCache { heads, seen, prompt_start, .. } = &cache.layers[layer];
    let Settings { query_heads, kv_heads, scale, ref kind, .. } = cache.settings;
    let group = query_heads / kv_heads;
    // A policy that only ever compresses prompts asks the prompt at hand: a short one votes alone.
    let mut first = seen.saturating_sub(window);
    if cache.settings.decode_every.is_none() {
        first = first.max(*prompt_start);
    }
    let mut all = Vec::new();
    for query_head in 0..query_heads {
        let entries = &heads[query_head / group];
        let keys = cache.keys(entries);
        let places: Vec<usize> = entries.iter().map(|entry| entry.position).collect();
        let mut rows = Vec::new();
        for position in first..*seen {
            let visible = entries.iter().filter(|entry| entry.position <= position).count();
            let query = cache.query(layer, query_head, position, entries.len());
            let seen = (&keys[..visible], &places[..visible]);
            let mut row = kind.weights(query_head, (&query, position), seen, scale);
            row.resize(entries.len(), 0.0);
            rows.push(row);
        }
        all.push(rows);
    }
    all
}

impl Window {
    /// `[kv_heads][entries]`; the window's own tokens are above all.
    pub fn scores(&self, cache: &ModelCache, layer: usize) -> Vec<Vec<f64>> {
        let heads = &cache.layers[layer].heads;
        let query_heads = cache.settings.query_heads;
        let group = query_heads / cache.settings.kv_heads;

        // Each query head's opinion on the entries of its kv head.
        let mut opinions = Vec::new();
        for (query_head, rows) in window_weights(cache, layer, self.window).iter().enumerate() {
            let before = outside(&cache.layers[layer], &heads[query_head / group], self.window);
            let mut mean = vec![0.0; before];
            for row in rows {
                for (mean, weight) in mean.iter_mut().zip(row) {
                    *mean += weight / rows.len() as f64;
                }
            }
            opinions.push(smooth(&mean, self.pool));
        }

        let chosen = match self.heads {
            Heads::Group => None,
            Heads::Layer => Some((0..query_heads).collect()),
            Heads::Retrieval { scores, pick } => {
                Some(pick.choose(&cache.settings.profile.heads(scores)[layer]))
            }
        };
        let mut all = Vec::new();
        for (kv_head, entries) in heads.iter().enumerate() {
            let before = outside(&cache.layers[layer], entries, self.window);
            let voters = chosen
                .clone()
                .unwrap_or_else(|| (kv_head * group..(kv_head + 1) * group).collect::<Vec<_>>());
            let mut scores = vec![0.0; before];
            for query_head in &voters {
                let own = &heads[query_head / group];
                for (score, entry) in scores.iter_mut().zip(entries) {
                    // Heads that hold different tokens vote on the tokens they hold.
                    let index = own.iter().position(|held| held.position == entry.position);
                    let vote = index.map_or(0.0, |index| opinions[*query_head][index]);
                    *score += vote / voters.len() as f64;
                }
            }
            scores.resize(entries.len(), f64::INFINITY);
            all.push(scores);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::score::by_hand::{assert_near, cache, prompt};
    use crate::reference::{Method, Profile};

    #[test]
    fn average_counts_the_zeros_beyond_the_ends() {
        assert_eq!(Pool::Average(3).apply(&[3.0, 6.0, 9.0, 0.0]), [3.0, 6.0, 5.0, 3.0]);
    }

    #[test]
    fn maximum_sees_only_what_is_there() {
        assert_eq!(Pool::Max(3).apply(&[-3.0, -6.0, -9.0, -1.0]), [-3.0, -3.0, -1.0, -1.0]);
    }

    #[test]
    fn the_last_two_of_five_queries_vote_on_the_first_three_tokens() {
        // The fourth query gives 1/5 1/5 2/5 1/5, the fifth 1/6 1/6 2/6 1/6 1/6.
        let mut cache = cache(Method::full(), 9);
        prompt(&mut cache, &[1.0, 1.0, 2.0, 1.0, 1.0]);
        let mean = (1.0 / 5.0 + 1.0 / 6.0) / 2.0;
        let window = Window { window: 2, pool: None, heads: Heads::Group };
        let (inf, scores) = (f64::INFINITY, window.scores(&cache, 0));
        assert_near(&scores[0], &[mean, mean, 2.0 * mean, inf, inf]);
        // Smoothed: what the window's own tokens get stays out of it.
        let window = Window { pool: Some(Pool::Average(3)), ..window };
        let third = mean / 3.0;
        let scores = window.scores(&cache, 0);
        assert_near(&scores[0], &[2.0 * third, 4.0 * third, 3.0 * third, inf, inf]);
    }

    #[test]
    fn heads_are_chosen_by_score_the_lower_of_equals_first() {
        let scores = [0.2, 0.8, 0.4, 0.8, 0.1];
        assert_eq!(Pick::Top(3).choose(&scores), [1, 3, 2]);
        assert_eq!(Pick::Top(1).choose(&scores), [1]);
        assert_eq!(Pick::Top(9).choose(&scores).len(), 5);
        // The sum is 2.3: they are 0.09, 0.35, 0.17, 0.35 and 0.04 of it.
        let above = |threshold, least| Pick::Adaptive { threshold, least };
        assert_eq!(above(0.1, 1).choose(&scores), [1, 3, 2]);
        assert_eq!(above(0.1, 4).choose(&scores), [1, 3, 2, 0]);
        assert_eq!(above(0.0, 2).choose(&[0.0, 0.0, 0.0]), [0, 1]);
    }

    #[test]
    fn only_retrieval_heads_vote_for_all_kv_heads() {
        // Two heads of their own keys; the second is the retrieval head, and gives 1/6 3/6 2/6.
        let mut cache = cache(Method::full(), 9);
        cache.settings.query_heads = 2;
        cache.settings.kv_heads = 2;
        cache.settings.profile = Profile { semantic: vec![vec![0.1, 0.9]], ..Profile::default() };
        let mut cache = ModelCache::new(cache.settings, cache.precision);
        let head = |weights: [f64; 3]| weights.iter().map(|w| vec![w.ln()]).collect::<Vec<_>>();
        let (ones, keys) = (vec![vec![1.0]; 3], vec![head([5.0, 1.0, 1.0]), head([1.0, 3.0, 2.0])]);
        cache.prompt(0, &[ones.clone(), ones.clone()], &keys, &[ones.clone(), ones], true);
        let heads = Heads::Retrieval { scores: HeadScore::Semantic, pick: Pick::Top(1) };
        let scores = Window { window: 1, pool: None, heads }.scores(&cache, 0);
        for scores in &scores {
            assert_near(scores, &[1.0 / 6.0, 3.0 / 6.0, f64::INFINITY]);
        }
    }
}
