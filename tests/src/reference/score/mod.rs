//! What an entry is worth.

pub mod accumulated;
pub mod global_local;
pub mod robust;
pub mod variance;
pub mod window;

use super::ModelCache;
use super::margin::Margin;

pub use global_local::From;
pub use window::{Heads, Pick, Pool, Window};

/// How entries are scored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Score {
    /// The later, the higher.
    Recency,
    /// H2O: the attention received so far.
    Accumulated {
        /// Divided by the number of queries that could see the token.
        mean: bool,
    },
    /// RoCo: the mean attention; those it was most unsteady for come first.
    Robust {
        /// The share of the budget that comes first.
        std_share: f64,
    },
    /// SnapKV, TOVA, CompressKV: what the last queries attend to.
    Window(Window),
    /// CAKE: mean and variance of the last queries' attention.
    Variance {
        /// Queries.
        window: usize,
        /// Factor on the variance.
        gamma: f64,
        /// Smoothing.
        pool: Option<Pool>,
    },
    /// EMS: the larger of all queries' attention and the last ones'.
    GlobalLocal {
        /// Queries that are the last ones.
        window: usize,
        /// Smoothing.
        pool: Option<Pool>,
        /// Whose attention counts.
        from: From,
        /// Whether the last tokens' own scores are smoothed with the others.
        pool_window: bool,
    },
}

impl Score {
    /// What each entry of a layer is worth, `[kv_heads][entries]`.
    pub fn scores(&self, cache: &ModelCache, layer: usize, margin: &mut Margin) -> Vec<Vec<f64>> {
        let heads = &cache.layers[layer].heads;
        match *self {
            Self::Recency => heads
                .iter()
                .map(|entries| entries.iter().map(|entry| entry.position as f64).collect())
                .collect(),
            Self::Accumulated { mean } => accumulated::scores(heads, mean),
            Self::Robust { std_share } => {
                // Halves of the least tokens make none.
                let first = (std_share * cache.budget(layer) as f64).floor() as usize;
                robust::scores(heads, first, margin)
            }
            Self::Window(window) => window.scores(cache, layer),
            Self::Variance { window, gamma, pool } => {
                variance::scores(cache, layer, window, gamma, pool)
            }
            Self::GlobalLocal { window, pool, from, pool_window } => {
                global_local::scores(&cache.layers[layer], window, pool, from, pool_window)
            }
        }
    }
}

/// Caches small enough to check with a pencil.
#[cfg(test)]
pub(crate) mod by_hand {
    use crate::reference::{
        Budget, Encoding, Entry, Method, ModelCache, Precision, Prefill, Profile, Settings,
    };

    /// An entry of a head with one query head that received `accumulated` from one query.
    pub(crate) fn entry(position: usize, key: &[f64], value: &[f64], accumulated: f64) -> Entry {
        Entry {
            position,
            key: key.to_vec(),
            value: value.to_vec(),
            received: vec![vec![accumulated]],
            center: position,
            past: 0.0,
            current: 0.0,
        }
    }

    /// An empty cache of one layer, one head, one channel, without positions.
    pub(crate) fn cache(method: Method, budget: usize) -> ModelCache {
        let settings = Settings {
            layers: 1,
            query_heads: 1,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            encoding: Encoding::None,
            method,
            profile: Profile::default(),
            budget: Budget::Tokens(budget),
            prefill: Prefill::AtEnd,
            decode_every: None,
        };
        ModelCache::new(settings, Precision::F32)
    }

    /// A prompt whose queries attend to its tokens in these proportions: token `j` gets `weights[j]` of the sum
    /// over the tokens a query sees. The value of a token is its position.
    pub(crate) fn prompt(cache: &mut ModelCache, weights: &[f64]) {
        let vectors = |number: fn(usize, f64) -> f64| {
            let token = |(index, weight): (usize, &f64)| vec![number(index, *weight)];
            vec![weights.iter().enumerate().map(token).collect::<Vec<_>>()]
        };
        cache.begin_prompt();
        let (q, k, v) = (vectors(|_, _| 1.0), vectors(|_, w| w.ln()), vectors(|i, _| i as f64));
        cache.prompt(0, &q, &k, &v, true);
    }

    /// Asserts that all numbers are the same up to rounding.
    pub(crate) fn assert_near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len(), "{found:?}, expected {expected:?}");
        for (a, b) in found.iter().zip(expected) {
            assert!(a == b || (a - b).abs() < 1e-12, "{found:?}, expected {expected:?}");
        }
    }
}
