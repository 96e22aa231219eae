//! Matrices of weights of eight and four bits, and products with them.

mod format;
#[cfg(feature = "flex")]
mod host;
mod linear;
mod matrix;
mod parts;
mod quantize;

pub use format::WeightFormat;
pub use linear::QuantizedLinearInput;
pub(super) use linear::quantized_linear;
pub use matrix::QuantizedMatrix;
pub use parts::QuantizedParts;
