//! Scores by the keys and values themselves: they are the same whatever is asked last.

mod capkv;
mod compactor;
mod curdkv;
mod keydiff;
mod knorm;
mod lagkv;
mod leverage;

pub use capkv::Capacity;
pub use compactor::Compactor;
pub use curdkv::Cur;
pub use keydiff::KeyDifference;
pub use knorm::KeyNorm;
pub use lagkv::LagRelative;
pub use leverage::Leverage;
