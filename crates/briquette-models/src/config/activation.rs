use crate::{Result, setting::unsupported};

pub use briquette::ops::Activation;

/// The activation of this name in a `config.json`.
pub(crate) fn named(name: &str) -> Result<Activation> {
    match name {
        "silu" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        other => Err(unsupported("hidden_act", other, "silu, gelu and gelu_pytorch_tanh")),
    }
}
