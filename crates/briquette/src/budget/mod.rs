//! Budgets, and the entries a cache keeps whatever their scores.

mod protect;
mod size;
mod text;

pub use protect::{Protect, Recent};
pub use size::Budget;
