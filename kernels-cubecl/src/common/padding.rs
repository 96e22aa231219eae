//! How many fillers each head begins with.

use briquette_ops::{Result, constant_ints};
use burn::tensor::{Int, Tensor};

use crate::common::check::Check;

/// What heads of a rectangle lack, one number a batch row and head, rows first.
pub(crate) struct PaddingCounts(Vec<usize>);

impl PaddingCounts {
    /// Of heads that hold so many of at most `width`.
    pub(crate) fn new(check: &Check, counts: &[usize], lists: usize, width: usize) -> Result<Self> {
        let fits = counts.len() == lists;
        check.value("the length of counts", counts.len(), fits, lists.to_string())?;
        for &count in counts {
            check.value("counts", count, count <= width, format!("at most {width}"))?;
        }
        Ok(Self(counts.iter().map(|count| width - count).collect()))
    }

    /// What one of them lacks.
    pub(crate) fn of(&self, head: usize) -> usize {
        self.0[head]
    }

    /// What the first lacks, and whether others lack more or less.
    pub(crate) fn same(&self) -> (usize, bool) {
        let first = self.0.first().copied().unwrap_or(0);
        (first, self.0.iter().any(|&missing| missing != first))
    }

    /// This and another beside it, `[lists, 2]`.
    pub(crate) fn beside(&self, other: &Self, like: &Tensor<3, Int>) -> Tensor<2, Int> {
        let both = self.0.iter().zip(&other.0);
        let list: Vec<i64> = both.flat_map(|(&a, &b)| [a as i64, b as i64]).collect();
        constant_ints("missing", list, [self.0.len(), 2], &like.device()).cast(like.dtype())
    }
}
