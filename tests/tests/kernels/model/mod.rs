//! The model around a cache: products with weights, norms and gates.

mod activation;
mod gated_linear;
mod linear;
mod most_likely;
mod quantized_linear;
mod rms_norm_gated;
