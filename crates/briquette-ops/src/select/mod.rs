//! Which entries stay, and their move into less room.

mod best;
mod ops;
mod pool;
mod ragged;

pub use best::SelectInput;
pub use ops::SelectOps;
pub use pool::{Pool, PoolKind};
pub use ragged::{PackInput, PadInput};
