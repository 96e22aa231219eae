//! Which entries stay, and their move into less room.

mod best;
mod ops;
mod ragged;

pub use best::SelectInput;
pub use ops::SelectOps;
pub use ragged::{PackInput, PadInput};
