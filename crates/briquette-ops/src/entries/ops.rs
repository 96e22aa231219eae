use std::fmt::Debug;

use burn::tensor::{Int, Tensor};

use super::{
    AttentionStatistics,
    append::{self, AppendInput},
    count::{self, CountInput},
    ranks,
};
use crate::error::Result;

/// Changes that every decoded token makes to the entries of a layer.
pub trait EntryOps: Debug + Send + Sync {
    /// Writes a new token per head behind the entries of a layer, in tensors that nobody else holds
    /// without copying any. See [`AppendInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit. Nothing is changed then.
    fn append(&self, input: AppendInput<'_>) -> Result<()> {
        append::append(input);
        Ok(())
    }

    /// Adds the attention that entries have received to their statistics. See [`CountInput`] for
    /// shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn count(&self, input: CountInput<'_>) -> Result<AttentionStatistics> {
        Ok(count::count(input))
    }
    /// Counts how many tokens of a head come before each. Returns the ranks, −1 at padding.
    ///
    /// # Shapes
    /// - `positions`: position of each entry, in any order, `[batch, heads, columns]`, −1 at
    ///   padding, the others of a head distinct
    /// - returns `[batch, heads, columns]`, of the type of `positions`
    ///
    /// Ranks do not depend on `sinks`, the number of first tokens that heads hold. Where a head
    /// holds its last tokens besides and no others, a kernel need not compare all with all.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if positions cannot be read or a kernel cannot be launched.
    fn ranks(&self, positions: Tensor<3, Int>, sinks: usize) -> Result<Tensor<3, Int>> {
        let _ = sinks;
        ranks::ranks(positions)
    }
}
