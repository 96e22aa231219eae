//! Scores by a second pass over the prompt.

mod kvcompose;
mod kvzip;

pub use kvcompose::RereadAttention;
pub use kvzip::ReconstructionAttention;
