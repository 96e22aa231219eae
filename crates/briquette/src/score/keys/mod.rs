//! Scores by keys and values alone: they are the same whatever is asked last.

mod capkv;
mod compactor;
mod curdkv;
mod keydiff;
mod knorm;
mod lagkv;
mod leverage;

pub use capkv::CapKv;
pub use compactor::Compactor;
pub use curdkv::CurDkv;
pub use keydiff::KeyDiff;
pub use knorm::Knorm;
pub use lagkv::LagKv;
pub use leverage::Leverage;
