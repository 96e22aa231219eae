//! The generation of tokens: options, sampling, and the loops around a model.

mod choose;
pub(crate) mod generated;
pub(crate) mod generation;
mod lookup;
pub(crate) mod options;
pub(crate) mod prefill;
pub(crate) mod reconstruct;
mod rows;
pub(crate) mod sample;
pub(crate) mod steps;
pub(crate) mod stream;
pub(crate) mod timing;
mod warm;
