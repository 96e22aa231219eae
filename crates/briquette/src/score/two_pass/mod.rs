//! Scores by a second pass of the model over the prompt.

mod kvcompose;
mod kvzip;

pub use kvcompose::RereadAttention;
pub use kvzip::ReconstructionAttention;
