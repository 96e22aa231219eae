use std::fmt::Debug;

use burn::tensor::Tensor;

use super::{
    gated::{self, GatedInput},
    rms_norm::{self, RmsNormInput, RmsNormOutput},
};
use crate::error::Result;

/// What a model has between its products with weights.
pub trait BlockOps: Debug + Send + Sync {
    /// A residual added, and the sum normalised.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn rms_norm(&self, input: RmsNormInput) -> Result<RmsNormOutput> {
        Ok(rms_norm::rms_norm(input))
    }

    /// One side of a gated feed-forward network, times the activation of the other, `[rows, channels]`.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn gated(&self, input: GatedInput) -> Result<Tensor<2>> {
        Ok(gated::gated(input))
    }
}
