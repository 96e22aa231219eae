//! Scorers that change the scores of another one.

mod block_wise;
mod chunkkv;
mod criticalkv;
mod entropy_gated;

pub use block_wise::BlockWise;
pub use chunkkv::ChunkKv;
pub use criticalkv::CriticalKv;
pub use entropy_gated::EntropyGated;
