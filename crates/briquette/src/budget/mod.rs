//! How much a cache may keep, and what it keeps whatever the scores.

mod protect;
mod size;
mod text;

pub use protect::{Protect, Recent};
pub use size::Budget;
