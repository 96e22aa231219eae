//! Scores by a second pass over the prompt.

mod kvcompose;
mod kvzip;

pub use kvcompose::KvCompose;
pub use kvzip::KvZip;
