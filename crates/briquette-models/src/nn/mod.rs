//! The layers that the architectures share.

pub(crate) mod attend;
pub(crate) mod blocks;
pub(crate) mod build;
pub(crate) mod decoder;
pub(crate) mod delta_net;
mod delta_rule;
pub(crate) mod embedding;
pub(crate) mod experts;
pub(crate) mod head_norm;
pub(crate) mod latent;
pub(crate) mod layer;
pub(crate) mod linear;
pub(crate) mod merged;
pub(crate) mod numbers;
pub(crate) mod positions;
pub(crate) mod projection;
pub(crate) mod quantized_linear;
pub(crate) mod residual;
pub(crate) mod rms_norm;
pub(crate) mod router;
pub(crate) mod temperature;
