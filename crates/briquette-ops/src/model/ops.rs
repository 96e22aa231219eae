use std::fmt::Debug;

use burn::tensor::Tensor;

#[cfg(feature = "flex")]
use super::host;
use super::{
    gated::{self, GatedInput, GatedLinearInput},
    linear::{self, LinearInput},
    quantized::{self, QuantizedLinearInput},
    rms_norm::{self, RmsNormInput, RmsNormOutput},
};
use crate::error::Result;

/// Operations of the model around a cache: products with weights, norms and gates.
pub trait ModelOps: Debug + Send + Sync {
    /// Multiplies rows with a matrix of weights, and adds the bias: `[rows, outputs]`. See
    /// [`LinearInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn linear(&self, input: LinearInput) -> Result<Tensor<2>> {
        linear::linear(input)
    }

    /// Whether [`linear`](Self::linear) is faster with these weights, `[inputs, outputs]`, if they
    /// are K-major: in memory the transpose of a matrix `[outputs, inputs]`, as checkpoints have
    /// it.
    fn prefers_k_major(&self, weight: &Tensor<2>) -> bool {
        let _ = weight;
        false
    }

    /// Multiplies rows with a matrix of quantized weights, and adds the bias: `[rows, outputs]`.
    /// See [`QuantizedLinearInput`] for shapes. The host reads the weights as they lie, and has no
    /// whole matrix of them expanded.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn quantized_linear(&self, input: QuantizedLinearInput) -> Result<Tensor<2>> {
        quantized::quantized_linear(input)
    }

    /// Adds a residual to rows, and normalises the sum by its root mean square. See
    /// [`RmsNormInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn rms_norm(&self, input: RmsNormInput) -> Result<RmsNormOutput> {
        #[cfg(feature = "flex")]
        if let Some(found) = host::rms_norm(&input)? {
            return Ok(found);
        }
        Ok(rms_norm::rms_norm(input))
    }

    /// Multiplies one side of a gated feed-forward network with the activation of the other,
    /// `[rows, channels]`. See [`GatedInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit.
    fn gated(&self, input: GatedInput) -> Result<Tensor<2>> {
        #[cfg(feature = "flex")]
        if let Some(found) = host::gated(&input)? {
            return Ok(found);
        }
        Ok(gated::gated(input))
    }

    /// Multiplies rows with the weights of both sides of a gated feed-forward network, and one side
    /// with the activation of the other: `[rows, channels]`. See [`GatedLinearInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes or types do not fit, or the outputs are no two halves.
    fn gated_linear(&self, input: GatedLinearInput) -> Result<Tensor<2>> {
        gated_linear_apart(self, input)
    }
}

/// [`ModelOps::gated_linear`] as two operations: the product of both sides, and the gate behind it.
///
/// # Errors
/// Those of both, and [`OpError::Value`](crate::OpError::Value) if the outputs are no two halves.
pub fn gated_linear_apart(
    ops: &(impl ModelOps + ?Sized),
    input: GatedLinearInput,
) -> Result<Tensor<2>> {
    input.check()?;
    let (product, activation) = input.into_product();
    ops.gated(GatedInput::of_halves(ops.linear(product)?, activation))
}
