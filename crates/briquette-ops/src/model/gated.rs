use burn::tensor::{
    Tensor,
    activation::{gelu, gelu_approximate, silu},
};

use super::linear::LinearInput;
use crate::error::{OpError, Result};

/// Activation function of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)` (Hendrycks and Gimpel, 2016,
    /// [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// GELU by its approximation with a hyperbolic tangent.
    GeluTanh,
}

impl Activation {
    /// Applies the function to each number.
    pub fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Silu => silu(x),
            Self::Gelu => gelu(x),
            Self::GeluTanh => gelu_approximate(x),
        }
    }
}

/// The two sides of a gated feed-forward network: SwiGLU or GeGLU (Shazeer, 2020,
/// [arXiv:2002.05202](https://arxiv.org/abs/2002.05202)). Both are of one type.
#[derive(Clone, Debug)]
pub struct GatedInput {
    /// Input of the activation, `[rows, channels]`.
    pub gate: Tensor<2>,
    /// Factor of the activation, `[rows, channels]`.
    pub up: Tensor<2>,
    /// The activation.
    pub activation: Activation,
}

impl GatedInput {
    /// Both sides as halves of one product, `[rows, 2 · channels]`: the gate's outputs, and those
    /// of the other side behind them.
    pub fn of_halves(both: Tensor<2>, activation: Activation) -> Self {
        let channels = both.dims()[1] / 2;
        let gate = both.clone().narrow(1, 0, channels);
        Self { gate, up: both.narrow(1, channels, channels), activation }
    }
}

/// Rows, and the weights of both sides of a gated feed-forward network. All tensors are of one
/// type.
#[derive(Clone, Debug)]
pub struct GatedLinearInput {
    /// One row per token, `[rows, inputs]`.
    pub x: Tensor<2>,
    /// Weights, `[inputs, 2 · channels]`: the gate's, and those of the other side behind them. See
    /// [`LinearInput::weight`].
    pub weight: Tensor<2>,
    /// Bias of both, `[2 · channels]`.
    pub bias: Option<Tensor<1>>,
    /// The activation.
    pub activation: Activation,
}

impl GatedLinearInput {
    /// Refuses weights that are not of two sides.
    ///
    /// # Errors
    /// [`OpError::Value`] if the number of outputs is odd.
    pub fn check(&self) -> Result<()> {
        let outputs = self.weight.dims()[1];
        let even = outputs.is_multiple_of(2);
        OpError::check_value("gated_linear", "outputs", outputs, even, "an even number")
    }

    /// The product of both sides, and the activation behind it.
    pub fn into_product(self) -> (LinearInput, Activation) {
        let Self { x, weight, bias, activation } = self;
        (LinearInput { x, weight, bias }, activation)
    }
}

/// Multiplies `up` with the activation of `gate`: the reference of
/// [`ModelOps::gated`](crate::ModelOps::gated).
pub fn gated(input: GatedInput) -> Tensor<2> {
    input.activation.apply(input.gate) * input.up
}
