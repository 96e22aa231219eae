use std::sync::Arc;

use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use briquette::ops::Ops;
use briquette_ops::{Activation, GatedInput, QuantizedLinearInput, QuantizedMatrix};

use crate::{Result, nn::linear::by_rows};

/// A linear layer whose weights stay quantized: [`ModelOps::quantized_linear`] reads them as they
/// lie.
///
/// [`ModelOps::quantized_linear`]: briquette_ops::ModelOps::quantized_linear
#[derive(Module, Debug)]
pub(crate) struct QuantizedLinear {
    /// `[outputs, inputs]`
    #[module(skip)]
    pub(crate) weight: Arc<QuantizedMatrix>,
    /// `[outputs]`
    pub(crate) bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) ops: Arc<dyn Ops>,
}

impl QuantizedLinear {
    /// `[.., inputs]` -> `[.., outputs]`
    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>) -> Result<Tensor<D>> {
        let bias = self.bias.as_ref().map(|bias| bias.val());
        multiply(x, &self.weight, bias, self.ops.as_ref())
    }

    /// See [`Projection::forward_gated`](super::projection::Projection::forward_gated).
    pub(crate) fn forward_gated<const D: usize>(
        &self,
        x: Tensor<D>,
        activation: Activation,
    ) -> Result<Tensor<D>> {
        let (bias, weight) = (self.bias.as_ref().map(|bias| bias.val()), (*self.weight).clone());
        by_rows(x, |x| {
            let both = self.ops.quantized_linear(QuantizedLinearInput { x, weight, bias })?;
            self.ops.gated(GatedInput::of_halves(both, activation))
        })
    }
}

/// `[.., inputs]` -> `[.., outputs]`
pub(crate) fn multiply<const D: usize>(
    x: Tensor<D>,
    weight: &QuantizedMatrix,
    bias: Option<Tensor<1>>,
    ops: &dyn Ops,
) -> Result<Tensor<D>> {
    let weight = weight.clone();
    by_rows(x, |x| ops.quantized_linear(QuantizedLinearInput { x, weight, bias }))
}
