use crate::error::{OpError, Result};

/// The tokens of a block where [`HeadPattern::Blocks`] picks blocks.
pub(super) const POOLED_BLOCK: usize = 64;
/// The tokens of a block where [`HeadPattern::Antidiagonal`] picks blocks.
pub(super) const ANTIDIAGONAL_BLOCK: usize = 128;

/// The part of a query head's weights that attention over a prompt computes; the others are zero. A query always sees
/// itself or a block before it.
///
/// Positions stand for tokens: a token keeps its place in lines and blocks when others around it have been evicted, and a
/// row with padding has those it has alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum HeadPattern {
    /// All of them.
    #[default]
    Dense,
    /// The first tokens and a band of recent ones: MInference's A-shape ([Jiang et al., 2024](https://arxiv.org/abs/2407.02490)).
    AShape {
        /// Tokens at the beginning.
        first: usize,
        /// Distances from a query, from 0 on.
        recent: usize,
    },
    /// Columns that all queries see, and distances at which every query sees: MInference's vertical-slash (Algorithm 2), from
    /// the weights of the last 64 queries.
    VerticalSlash {
        /// Columns, at least 30: the first 30 tokens are ahead of all others.
        vertical: usize,
        /// Distances, at least 50: those below 100 are ahead of all others.
        slash: usize,
    },
    /// Blocks of 64 queries by 64 keys, from the products of their means: MInference's block-sparse (Algorithm 3).
    Blocks {
        /// Blocks of keys for each block of queries, at least 1.
        blocks: usize,
    },
    /// Blocks of 128 queries by 128 keys, from sums along antidiagonals: XAttention
    /// ([Xu et al., 2025](https://arxiv.org/abs/2503.16428), Algorithm 1).
    Antidiagonal {
        /// Tokens that a sum runs over; a divisor of 128.
        stride: usize,
        /// The share of a block of queries' estimated weights that its blocks of keys must have, 0 to 1.
        threshold: f64,
    },
}

impl HeadPattern {
    /// Refuses numbers that no pattern can have.
    ///
    /// # Errors
    /// [`OpError::Value`].
    pub fn check(&self) -> Result<()> {
        let wrong = |what, found, expected: &str| {
            let operation = "sparse attention";
            Err(OpError::Value { operation, what, found, expected: expected.into() })
        };
        match *self {
            Self::Blocks { blocks: 0 } => wrong("blocks of a pattern", 0, "at least 1"),
            Self::AShape { recent: 0, .. } => {
                wrong("the recent tokens of a pattern", 0, "at least 1")
            }
            Self::Antidiagonal { stride, .. }
                if stride == 0 || !ANTIDIAGONAL_BLOCK.is_multiple_of(stride) =>
            {
                wrong("the stride of a pattern", stride, "a divisor of 128")
            }
            Self::Antidiagonal { threshold, .. } if !(0.0..=1.0).contains(&threshold) => {
                // A share has no whole number to name.
                wrong(
                    "the threshold of a pattern in percent",
                    (threshold * 100.0) as usize,
                    "0 to 100",
                )
            }
            _ => Ok(()),
        }
    }
}
