use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    best::{self, SelectInput},
    ragged::{self, PackInput, PadInput},
};
use crate::{
    entries::{Entries, Selection, Split, gather_entries},
    error::Result,
};

/// Selection, compaction, and the way to and from ragged entries.
pub trait SelectOps: Debug + Send + Sync {
    /// The entries to keep: the protected ones, then the highest scores; of equal ones the older.
    ///
    /// # Errors
    /// [`OpError::NotANumber`](crate::OpError::NotANumber) if a score is NaN and
    /// [`SelectInput::check`] asks for it, [`OpError::Execution`](crate::OpError::Execution) if the
    /// device failed.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        best::select(input)
    }

    /// [`select`](Self::select), and what is left of the entries held.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    fn split(&self, input: SelectInput<'_>) -> Result<Split> {
        best::split(input)
    }

    /// The selected entries with all that is known of them: entries of which each has a row.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn compact(&self, entries: Entries, selection: &Selection) -> Result<Entries> {
        Ok(gather_entries(entries, selection))
    }

    /// Keys and values of ragged entries padded to a rectangle, and those of a tail behind them,
    /// `[batch, kv_heads, width + tail, head_dim]` each; any of their rows at padding. See
    /// [`PadInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn pad(&self, input: PadInput) -> Result<[Tensor<4>; 2]> {
        Ok(ragged::pad(input))
    }

    /// Keys and values of heads that hold different numbers of entries without padding,
    /// `[total, head_dim]` each. See [`PackInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn pack(&self, input: PackInput<'_>) -> Result<[Tensor<2>; 2]> {
        Ok(ragged::pack(input))
    }
}
