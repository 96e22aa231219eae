//! The model around a cache: products with weights, norms and gates.

mod gated;
mod linear;
mod rms_norm;

pub(crate) use self::linear::is_worthwhile;
pub use self::{
    gated::gated,
    linear::{MOST_LINEAR_ROWS, linear},
    rms_norm::rms_norm,
};
