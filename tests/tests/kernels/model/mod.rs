//! The model around a cache: products with weights, norms and gates.

mod linear;
mod most_likely;
mod quantized_linear;
mod rms_norm_gated;
