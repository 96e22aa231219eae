use burn::tensor::{
    Tensor,
    activation::{gelu, gelu_approximate, silu},
};

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

/// Multiplies `up` with the activation of `gate`: the reference of
/// [`ModelOps::gated`](crate::ModelOps::gated).
pub fn gated(input: GatedInput) -> Tensor<2> {
    input.activation.apply(input.gate) * input.up
}
