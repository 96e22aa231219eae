//! What lies between the products of a layer: norms, and gates.

mod gated;
mod ops;
mod rms_norm;

pub use gated::{Activation, GatedInput, gated};
pub use ops::BlockOps;
pub use rms_norm::{RmsNormInput, RmsNormOutput, rms_norm};
