use serde::{Deserialize, Serialize};

/// Tokens of a block of [`HeadPattern::Blocks`].
pub(super) const POOLED_BLOCK: usize = 64;
/// Tokens of a block of [`HeadPattern::Antidiagonal`].
pub(super) const ANTIDIAGONAL_BLOCK: usize = 128;

/// Pattern of the weights that a query head computes in attention over a prompt; the others are
/// zero. A query always sees itself or a block before it.
///
/// Patterns are of positions: a token keeps its place in them when others around it have been
/// evicted, and a batch row with padding has the pattern that it has alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HeadPattern {
    /// All weights.
    #[default]
    Dense,
    /// The first tokens and a band of recent ones: MInference's A-shape ([Jiang et al.,
    /// 2024](https://arxiv.org/abs/2407.02490)).
    AShape {
        /// Number of first tokens.
        first: usize,
        /// Number of distances from a query, from 0 on; at least 1.
        recent: usize,
    },
    /// Columns that all queries see, and distances at which every query sees: MInference's
    /// vertical-slash (Algorithm 2), from the weights of the last 64 queries.
    VerticalSlash {
        /// Number of columns, raised to 30 at least: the first 30 tokens come ahead of all others.
        vertical: usize,
        /// Number of distances, raised to 50 at least: those below 100 come ahead of all others.
        slash: usize,
    },
    /// Blocks of 64 queries by 64 keys, from the products of their means: MInference's block-sparse
    /// (Algorithm 3).
    Blocks {
        /// Number of blocks of keys per block of queries, at least 1.
        blocks: usize,
    },
    /// Blocks of 128 queries by 128 keys, from sums along antidiagonals: XAttention
    /// ([Xu et al., 2025](https://arxiv.org/abs/2503.16428), Algorithm 1).
    Antidiagonal {
        /// Number of tokens of a sum; a divisor of 128.
        stride: usize,
        /// Share of the estimated weights of a block of queries that its blocks of keys must have,
        /// 0 to 1.
        threshold: f64,
    },
}

impl HeadPattern {
    /// Returns the condition that the numbers of the pattern break, if they break one.
    pub fn breaks(&self) -> Option<&'static str> {
        match *self {
            Self::Blocks { blocks: 0 } => Some("a pattern of at least one block"),
            Self::AShape { recent: 0, .. } => Some("a pattern of at least one recent token"),
            Self::Antidiagonal { stride, .. }
                if stride == 0 || !ANTIDIAGONAL_BLOCK.is_multiple_of(stride) =>
            {
                Some("a pattern with a stride that divides 128")
            }
            Self::Antidiagonal { threshold, .. } if !(0.0..=1.0).contains(&threshold) => {
                Some("a pattern with a threshold from 0 to 1")
            }
            _ => None,
        }
    }
}
