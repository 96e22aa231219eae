use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    best::{self, SelectInput},
    ragged::{self, PackInput, PadInput},
    robust::{self, RobustInput},
};
use crate::{
    entries::{Entries, Selection, Split, gather_entries},
    error::Result,
};

/// Selection and compaction of entries, and conversion between ragged and padded entries.
pub trait SelectOps: Debug + Send + Sync {
    /// Selects the entries to keep: the protected ones, then those with the highest scores; of
    /// equal scores the older. See [`SelectInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError::NotANumber`](crate::OpError::NotANumber) if the score of an entry is NaN and
    /// [`SelectInput::check`] is set or selection runs on the host,
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed, and other
    /// [`OpError`](crate::OpError)s if shapes do not fit.
    fn select(&self, input: SelectInput<'_>) -> Result<Selection> {
        best::select(input)
    }

    /// Selects the entries to keep as [`select`](Self::select) does, and returns the others too.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    fn split(&self, input: SelectInput<'_>) -> Result<Split> {
        best::split(input)
    }

    /// Gathers the selected entries: keys, values, positions and statistics. Each entry of the
    /// result has a row of its own.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn compact(&self, entries: Entries, selection: &Selection) -> Result<Entries> {
        Ok(gather_entries(entries, selection))
    }

    /// Pads keys and values of ragged entries to a rectangle and appends those of a tail,
    /// `[batch, kv_heads, width + tail, channels]` each; rows at padding are copies of any of the
    /// rows. See [`PadInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn pad(&self, input: PadInput) -> Result<[Tensor<4>; 2]> {
        Ok(ragged::pad(input))
    }

    /// Packs keys and values of heads with different numbers of entries one after another, without
    /// padding, `[total, channels]` each. See [`PackInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn pack(&self, input: PackInput<'_>) -> Result<[Tensor<2>; 2]> {
        Ok(ragged::pack(input))
    }

    /// Scores entries by the mean of the attention they received, those of the highest deviations
    /// above all others (RoCo): see [`RobustInput`]. Returns `[batch, kv_heads, entries]`, f32.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit, or a deviation is NaN where the host
    /// chooses.
    fn robust_scores(&self, input: RobustInput<'_>) -> Result<Tensor<3>> {
        robust::robust_scores(input)
    }
}
