//! A policy: one composition of the four stages, when it runs, and what it never drops.
//!
//! A paper's name is a named composition and nothing more; [`methods`] is the table of them.

mod check;
mod composition;
mod file;
mod keys;
mod methods;
mod passes;
mod positions;
mod resolve;
mod schedule;
mod setters;
mod sparse_prefill;
mod statistics;

pub use composition::Policy;
pub use methods::{MethodInfo, methods};
pub use positions::PositionMode;
pub use schedule::{AppendOnly, PrefillCompression, Schedule};
pub use sparse_prefill::SparsePrefill;

pub use crate::budget::{Budget, Protect, Recent};
