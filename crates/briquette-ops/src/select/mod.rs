//! Selection of the entries to keep, and their compaction, ragged or padded.

mod best;
mod ops;
mod pool;
mod ragged;
mod robust;

pub use best::SelectInput;
pub use ops::SelectOps;
pub use pool::{Pool, PoolKind};
pub use ragged::{PackInput, PadInput};
pub use robust::RobustInput;
