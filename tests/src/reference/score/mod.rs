//! Scores of entries.

pub mod accumulated;
pub mod block_wise;
pub mod cake;
pub mod chunkkv;
pub mod compactor;
pub mod criticalkv;
pub mod curdkv;
pub mod dropkv;
pub mod ems;
pub mod entropy_gated;
pub mod expected_attention;
pub mod finch;
pub mod keydiff;
pub mod knorm;
pub mod lagkv;
pub mod leverage;
pub mod non_causal;
pub mod q_filter;
pub mod random;
pub mod rkv;
pub mod roco;
pub mod triattention;
pub mod window;

use super::ModelCache;
use super::margin::Margin;

pub use chunkkv::Inner;
pub use ems::From;
pub use window::{Heads, Pick, Pool, Window};

/// A score of entries.
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
        /// Queries whose attention counts.
        from: From,
        /// Whether the last tokens' own scores are smoothed with the others.
        pool_window: bool,
    },
    /// Knorm: the shorter a key, the higher.
    KeyNorm,
    /// KeyDiff: the less a key is like the others, the higher.
    KeyDifference,
    /// By lot.
    Random {
        /// Seed of the draws.
        seed: u64,
    },
    /// LagKV: how much channels differ once scaled by their range in the next partition.
    LagRelative {
        /// Tokens of a partition.
        lag: usize,
    },
    /// CurDKV: squared lengths of key and value as shares of a group's.
    Cur {
        /// Tokens of a group.
        window: usize,
    },
    /// Compactor's first half: how much a key stands out of the space of the others.
    Leverage {
        /// Ridge that keeps the inverse small.
        ridge: f64,
    },
    /// Compactor's second half: what all queries of its chunk give a token.
    Chunk {
        /// Tokens of a chunk.
        chunk: usize,
        /// Smoothing.
        pool: Option<Pool>,
    },
    /// Compactor: both.
    Compactor {
        /// Ridge that keeps the inverse small.
        ridge: f64,
        /// Tokens of a chunk.
        chunk: usize,
        /// Smoothing of the second.
        pool: Option<Pool>,
        /// The weight of the first; `None` is the share that goes.
        blend: Option<f64>,
    },
    /// Expected Attention: what the next queries will attend to, if they are like those that came.
    Expected {
        /// The next so many.
        future: usize,
        /// Added before it is multiplied by the length of the value.
        epsilon: f64,
    },
    /// CapKV: what no other value says.
    Capacity {
        /// The next so many.
        future: usize,
        /// Sharpness with which keys are weighed.
        tau: f64,
    },
    /// R-KV: what the last queries attend to, less how much a key is like the others.
    Redundancy {
        /// The window whose attention counts.
        window: Window,
        /// Weight of the difference from other keys.
        lambda: f64,
    },
    /// CriticalKV: and then by how far values reach.
    Critical {
        /// The score that comes first.
        inner: Inner,
        /// The share of the budget that it fills.
        first: f64,
        /// Added to a score before it is multiplied.
        epsilon: f64,
    },
    /// ChunkKV: means over chunks of neighbours and over heads.
    Chunks {
        /// Tokens of a chunk.
        length: usize,
        /// The score of single entries.
        inner: Inner,
    },
    /// Chunks, of which important ones of low entropy give few tokens.
    Gated {
        /// Tokens of a chunk.
        length: usize,
        /// Tokens that such a chunk gives.
        few: usize,
        /// The score of single entries.
        inner: Inner,
    },
    /// KeyDiff's blocks: what is left where the budget competes with one block after the other.
    Blocks {
        /// Tokens of a block.
        length: usize,
        /// The score within a block.
        inner: Inner,
    },
    /// DropKV: how far the last queries' outputs would move without a token.
    Drop {
        /// Queries.
        window: usize,
        /// Smoothing.
        pool: Option<Pool>,
    },
    /// Q-Filter: how far a key points along what queries share.
    Direction,
    /// TriAttention: what the mean query will give a key.
    Trigonometric {
        /// The furthest position ahead.
        future: usize,
    },
    /// FINCH: what a question's queries attend to.
    Question {
        /// Queries.
        window: usize,
    },
    /// KVCompose: what queries that read the prompt again give a token, of which a cache alone
    /// knows nothing.
    Reread {
        /// Tokens read at a time.
        tokens: usize,
        /// Whether the mean of the layer is added.
        layer_mean: bool,
    },
    /// KVzip: what queries that repeat the prompt give a token, of which a cache alone knows
    /// nothing.
    Repeat {
        /// Tokens repeated at a time.
        tokens: usize,
        /// KVzip+.
        normalize: bool,
    },
}

impl Score {
    /// Whether it looks at keys or values themselves, not at attention.
    pub fn looks_at_keys(&self) -> bool {
        !matches!(
            self,
            Self::Recency
                | Self::Random { .. }
                | Self::Accumulated { .. }
                | Self::Robust { .. }
                | Self::Window(_)
                | Self::Variance { .. }
                | Self::GlobalLocal { .. }
                | Self::Question { .. }
                | Self::Reread { .. }
                | Self::Repeat { .. }
        )
    }

    /// Tokens of a chunk, if it looks at chunks.
    pub fn chunk(&self) -> Option<usize> {
        match *self {
            Self::Chunk { chunk, .. } | Self::Compactor { chunk, .. } => Some(chunk),
            _ => None,
        }
    }

    /// Scores of the entries of a layer, `[kv_heads][entries]`.
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
                roco::scores(heads, first, margin)
            }
            Self::Window(window) => window.scores(cache, layer),
            Self::Variance { window, gamma, pool } => {
                cake::scores(cache, layer, window, gamma, pool)
            }
            Self::GlobalLocal { window, pool, from, pool_window } => {
                ems::scores(&cache.layers[layer], window, pool, from, pool_window)
            }
            Self::KeyNorm => knorm::scores(heads),
            Self::KeyDifference => keydiff::scores(heads),
            Self::Random { seed } => random::scores(heads, seed, layer),
            Self::LagRelative { lag } => {
                lagkv::scores(heads, cache.settings.method.sinks, lag, margin)
            }
            Self::Cur { window } => curdkv::scores(heads, window),
            Self::Leverage { ridge } => leverage::scores(heads, cache.settings.method.sinks, ridge),
            Self::Chunk { pool, .. } => non_causal::scores(heads, pool),
            Self::Compactor { ridge, pool, blend, .. } => {
                compactor::scores(cache, layer, ridge, pool, blend)
            }
            Self::Expected { future, epsilon } => {
                expected_attention::scores(cache, layer, future, epsilon)
            }
            Self::Capacity { future, tau } => {
                expected_attention::capacities(cache, layer, future, tau)
            }
            Self::Redundancy { window, lambda } => rkv::scores(cache, layer, window, lambda),
            Self::Critical { inner, first, epsilon } => {
                criticalkv::scores(cache, layer, inner, first, epsilon, margin)
            }
            Self::Chunks { length, inner } => chunkkv::scores(cache, layer, length, inner, margin),
            Self::Gated { length, few, inner } => {
                entropy_gated::scores(cache, layer, (length, few), inner, margin)
            }
            Self::Blocks { length, inner } => {
                block_wise::scores(cache, layer, length, inner, margin)
            }
            Self::Drop { window, pool } => dropkv::scores(cache, layer, window, pool),
            Self::Direction => q_filter::scores(cache, layer),
            Self::Trigonometric { future } => triattention::scores(cache, layer, future),
            Self::Question { window } => finch::scores(cache, layer, window),
            Self::Repeat { .. } | Self::Reread { .. } => panic!("there is no second pass"),
        }
    }
}

/// Caches small enough to check with a pencil.
#[cfg(test)]
pub(crate) mod by_hand {
    use crate::reference::{
        Budget, Encoding, Entry, Kind, Method, ModelCache, Precision, Prefill, Profile, Settings,
    };

    /// An entry of a head with one query head that received `accumulated` from one query.
    pub(crate) fn entry(position: usize, key: &[f64], value: &[f64], accumulated: f64) -> Entry {
        Entry {
            position,
            key: key.to_vec(),
            value: value.to_vec(),
            received: vec![vec![accumulated]],
            representative: position,
            ..Entry::default()
        }
    }

    /// Entries of these keys, of one channel.
    pub(crate) fn keys(keys: &[f64]) -> Vec<Entry> {
        keys.iter().enumerate().map(|(i, key)| entry(i, &[*key], &[0.0], 0.0)).collect()
    }

    /// An empty cache of one layer, one head, one channel, without positions.
    pub(crate) fn cache(method: Method, budget: usize) -> ModelCache {
        let settings = Settings {
            layers: 1,
            query_heads: 1,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            kind: Kind::default(),
            encoding: Encoding::None,
            method,
            profile: Profile::default(),
            budget: Budget::Tokens(budget),
            prefill: Prefill::AtEnd,
            decode_every: None,
        };
        ModelCache::new(settings, Precision::F32)
    }

    /// A prompt whose queries attend to its tokens in these proportions: token `j` gets
    /// `weights[j]` of the sum over the tokens a query sees. The value of a token is its position.
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
