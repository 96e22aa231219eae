//! The model around a cache: products with weights, and the norms and gates between them.

mod gated;
#[cfg(feature = "flex")]
mod host;
mod linear;
mod most_likely;
mod ops;
mod quantized;
mod rms_norm;

pub use gated::{Activation, GatedInput, GatedLinearInput, gated};
pub use linear::LinearInput;
pub use most_likely::{all_finite, most_likely};
pub use ops::{ModelOps, gated_linear_apart};
pub use quantized::{QuantizedLinearInput, QuantizedMatrix, QuantizedParts, WeightFormat};
pub use rms_norm::{RmsNormInput, RmsNormOutput, rms_norm};
