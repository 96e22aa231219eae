use crate::{
    Result,
    setting::{contradiction, unsupported},
};

pub use briquette_ops::Activation;

/// The activation of this name in a `config.json`.
pub(crate) fn named(name: &str) -> Result<Activation> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        other => Err(unsupported(
            "hidden_act",
            other,
            "silu (swish), gelu and gelu_pytorch_tanh (gelu_new)",
        )),
    }
}

/// The activation that the key of an architecture says, each a key and its value. The `other` key,
/// which this architecture does not read, must not say another one.
pub(crate) fn of_keys(
    own: (&'static str, Option<&str>),
    other: (&'static str, Option<&str>),
    absent: Activation,
) -> Result<Activation> {
    let (key, name) = own;
    let found = name.map_or(Ok(absent), named)?;
    match other {
        (_, None) => Ok(found),
        (_, Some(name)) if named(name).is_ok_and(|other| other == found) => Ok(found),
        (ignored, Some(other)) => Err(contradiction(ignored, other, key, name.unwrap_or("absent"))),
    }
}
