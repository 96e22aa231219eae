use burn::tensor::{
    Tensor,
    activation::{gelu, gelu_approximate, silu},
};

use crate::{Result, setting::unsupported};

/// The function inside a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// `x · Φ(x)` (Hendrycks and Gimpel, 2016, [arXiv:1606.08415](https://arxiv.org/abs/1606.08415)).
    Gelu,
    /// GELU by its approximation with a hyperbolic tangent.
    GeluTanh,
}

impl Activation {
    pub(crate) fn named(name: &str) -> Result<Self> {
        match name {
            "silu" => Ok(Self::Silu),
            "gelu" => Ok(Self::Gelu),
            "gelu_pytorch_tanh" => Ok(Self::GeluTanh),
            other => Err(unsupported("hidden_act", other, "silu, gelu and gelu_pytorch_tanh")),
        }
    }

    pub(crate) fn apply<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Silu => silu(x),
            Self::Gelu => gelu(x),
            Self::GeluTanh => gelu_approximate(x),
        }
    }
}
