use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    accumulate::{self, AccumulateInput},
    ema::{self, EmaInput, EmaOutput},
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
}
