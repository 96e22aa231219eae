//! Chat templates as programs: what `transformers` gives them, and a bound on what they write.

mod budget;
mod check;
mod dialect;
mod json;
mod multiply;
mod python;
pub(crate) mod render;
