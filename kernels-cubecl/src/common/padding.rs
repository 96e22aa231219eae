//! Numbers of padding columns that heads begin with.

use briquette_ops::{Result, constant_ints};
use burn::tensor::{Int, Tensor};

use crate::common::check::Check;

/// Padding columns of a rectangle, one number per batch row and head, rows first.
pub(crate) struct PaddingCounts(Vec<usize>);

impl PaddingCounts {
    /// Counts the padding of heads that have so many columns of `width`.
    pub(crate) fn new(check: &Check, counts: &[usize], lists: usize, width: usize) -> Result<Self> {
        check.equal("the length of counts", counts.len(), lists)?;
        for &count in counts {
            check.value("counts", count, count <= width, format!("at most {width}"))?;
        }
        Ok(Self(counts.iter().map(|count| width - count).collect()))
    }

    /// Number of padding columns of one head.
    pub(crate) fn of(&self, head: usize) -> usize {
        self.0[head]
    }

    /// Number of the first head, and whether other heads have another.
    pub(crate) fn same(&self) -> (usize, bool) {
        let first = self.0.first().copied().unwrap_or(0);
        (first, self.0.iter().any(|&missing| missing != first))
    }

    /// These counts and others side by side, `[lists, 2]`.
    pub(crate) fn beside(&self, other: &Self, like: &Tensor<3, Int>) -> Tensor<2, Int> {
        let both = self.0.iter().zip(&other.0);
        let list: Vec<i64> = both.flat_map(|(&a, &b)| [a as i64, b as i64]).collect();
        constant_ints("missing", list, [self.0.len(), 2], &like.device()).cast(like.dtype())
    }
}
