use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    accumulate::{self, AccumulateInput},
    ema::{self, EmaInput, EmaOutput},
    evict::{self, EvictInput, EvictMergeInput},
    evict_spreading::{self, EvictSpreadInput},
    nearest::{self, NearestInput, NearestOutput},
    weighted::{self, MergeInput},
};
use crate::error::Result;

/// Similarities and weighted sums of rows.
pub trait MergeOps: Debug + Send + Sync {
    /// Finds the most similar other row of each row. See [`NearestInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn nearest(&self, input: NearestInput) -> Result<NearestOutput> {
        Ok(nearest::nearest(input))
    }

    /// Adds weighted rows up in slots, `[batch, kv_heads, slots, channels]`, f32. See
    /// [`AccumulateInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn accumulate(&self, input: AccumulateInput) -> Result<Tensor<4>> {
        Ok(accumulate::accumulate(input))
    }

    /// Merges rows into others: returns keys and values, each the weighted mean of a row and of the
    /// other rows that go to it. See [`MergeInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn merge(&self, input: MergeInput) -> Result<(Tensor<4>, Tensor<4>)> {
        weighted::merge(input, |input| self.accumulate(input))
    }

    /// Computes the weights of evicted entries in the entries that they are merged into (D2O, Eq. 9
    /// to 12). See [`EmaInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn ema_weights(&self, input: EmaInput<'_>) -> Result<EmaOutput> {
        Ok(ema::ema_weights(input))
    }

    /// Evicts the weakest entry of each head and puts a new token in its place, in tensors that
    /// nobody else holds without copying any. The entry is the one that
    /// [`select`](crate::SelectOps::select) would not keep, in whatever order entries lie: the
    /// lowest score, and of equal scores the newest; NaN is the lowest. See [`EvictInput`] for
    /// shapes.
    ///
    /// # Errors
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed, and other
    /// [`OpError`](crate::OpError)s if shapes or types do not fit. Nothing is changed then.
    fn evict(&self, input: EvictInput<'_>) -> Result<()> {
        evict::evict(input)
    }

    /// Evicts as [`evict`](Self::evict) does, after each evicted entry has been merged into the one
    /// with the most similar key, the oldest of equals, if it is similar enough (D2O, Eq. 9 to 12):
    /// weights are those of [`ema_weights`](Self::ema_weights), that of the other entry is e.
    /// Returns the threshold of each batch row, `[batch, 1]`, f32.
    ///
    /// # Errors
    /// As [`evict`](Self::evict).
    fn evict_merging(&self, input: EvictInput<'_>, merge: EvictMergeInput) -> Result<Tensor<2>> {
        evict::evict_merging(input, merge)
    }

    /// Evicts as [`evict`](Self::evict) does, after the value of each evicted entry has been added
    /// to those of the tokens behind it, to each the same share, if its random number says so
    /// (CaM): see [`EvictSpreadInput`].
    ///
    /// # Errors
    /// As [`evict`](Self::evict).
    fn evict_spreading(&self, input: EvictInput<'_>, spread: EvictSpreadInput) -> Result<()> {
        evict_spreading::evict_spreading(input, spread)
    }
}
