//! Profiles: which heads of a model retrieve, and which of its layers suffer from a small cache.
//!
//! All of it is measured on prompts with one needle at a random depth, while the model is fed the
//! right answer token by token, so that every prompt counts; the layer errors on other text too.
//! The definitions stand at [`heads`] and [`errors`].

pub mod errors;
pub mod heads;
mod queries;
mod run;

pub use run::{Calibrated, Calibration, Plan};
