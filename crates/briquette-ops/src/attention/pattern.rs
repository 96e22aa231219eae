use serde::{Deserialize, Serialize};

/// The tokens of a block where [`HeadPattern::Blocks`] picks blocks.
pub(super) const POOLED_BLOCK: usize = 64;
/// The tokens of a block where [`HeadPattern::Antidiagonal`] picks blocks.
pub(super) const ANTIDIAGONAL_BLOCK: usize = 128;

/// The part of a query head's weights that attention over a prompt computes; the others are zero. A
/// query always sees itself or a block before it.
///
/// Positions stand for tokens: a token keeps its place in lines and blocks when others around it
/// have been evicted, and a row with padding has those it has alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum HeadPattern {
    /// All of them.
    #[default]
    Dense,
    /// The first tokens and a band of recent ones: MInference's A-shape ([Jiang et al.,
    /// 2024](https://arxiv.org/abs/2407.02490)).
    AShape {
        /// Tokens at the beginning.
        first: usize,
        /// Distances from a query, from 0 on.
        recent: usize,
    },
    /// Columns that all queries see, and distances at which every query sees: MInference's
    /// vertical-slash (Algorithm 2), from the weights of the last 64 queries.
    VerticalSlash {
        /// Columns, at least 30: the first 30 tokens are ahead of all others.
        vertical: usize,
        /// Distances, at least 50: those below 100 are ahead of all others.
        slash: usize,
    },
    /// Blocks of 64 queries by 64 keys, from the products of their means: MInference's block-sparse
    /// (Algorithm 3).
    Blocks {
        /// Blocks of keys for each block of queries, at least 1.
        blocks: usize,
    },
    /// Blocks of 128 queries by 128 keys, from sums along antidiagonals: XAttention
    /// ([Xu et al., 2025](https://arxiv.org/abs/2503.16428), Algorithm 1).
    Antidiagonal {
        /// Tokens that a sum runs over; a divisor of 128.
        stride: usize,
        /// The share of a block of queries' estimated weights that its blocks of keys must have, 0
        /// to 1.
        threshold: f64,
    },
}

impl HeadPattern {
    /// The condition on its numbers that the pattern breaks, if it does.
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
