//! The model around a cache: products with weights, norms and gates.

mod gated;
mod linear;
mod quantized_linear;
mod rms_norm;

#[cfg(cubecl_0_12)]
pub(crate) use self::linear::takes_gated;
#[cfg(cubecl_0_12)]
pub use self::linear::{LINEAR_SETTINGS, gated_linear, linear_by};
pub use self::{
    gated::gated,
    linear::{MOST_LINEAR_ROWS, linear},
    quantized_linear::{MOST_QUANTIZED_LINEAR_ROWS, dequantize, quantized_linear},
    rms_norm::rms_norm,
};
pub(crate) use self::{
    linear::{is_worthwhile, prefers_k_major},
    quantized_linear::takes_quantized,
};
