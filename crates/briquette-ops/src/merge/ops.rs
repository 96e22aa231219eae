use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    accumulate::{self, AccumulateInput},
    ema::{self, EmaInput, EmaOutput},
    nearest::{self, NearestInput, NearestOutput},
    weighted::{self, MergeInput},
};
use crate::error::Result;

/// Similarity and weighted sums of rows.
pub trait MergeOps: Debug + Send + Sync {
    /// For each of some rows the most similar of others. See [`NearestInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn nearest(&self, input: NearestInput) -> Result<NearestOutput> {
        Ok(nearest::nearest(input))
    }

    /// Weighted sums of rows, each added to the slots it is sent to,
    /// `[batch, kv_heads, slots, channels]`, f32. See [`AccumulateInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn accumulate(&self, input: AccumulateInput) -> Result<Tensor<4>> {
        Ok(accumulate::accumulate(input))
    }

    /// Keys and values of some rows, each the weighted mean of itself and of others that go to it.
    /// See [`MergeInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn merge(&self, input: MergeInput) -> Result<(Tensor<4>, Tensor<4>)> {
        weighted::merge(input, |input| self.accumulate(input))
    }

    /// The weights of evicted entries in those that they are merged into: D2O, Eq. 9 to 12. See
    /// [`EmaInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn ema_weights(&self, input: EmaInput<'_>) -> Result<EmaOutput> {
        Ok(ema::ema_weights(input))
    }
}
