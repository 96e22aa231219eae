//! Scores by a profile of the model, measured ahead of time.

mod q_filter;
mod retrieval_heads;
mod table;
mod triattention;

pub use q_filter::QFilter;
pub use retrieval_heads::{Pick, RetrievalHeads};
pub use triattention::TriAttention;
