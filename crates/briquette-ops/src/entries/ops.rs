use std::fmt::Debug;

use super::{
    AttentionStatistics,
    append::{self, AppendInput},
    count::{self, CountInput},
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
}
