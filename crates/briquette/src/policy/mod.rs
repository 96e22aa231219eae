//! A policy: one composition of the four stages, when it runs, and what it never drops.
//!
//! A paper's method is a named composition and nothing more; [`methods`] is the table of them.

mod budget;
mod builder;
mod check;
mod file;
mod methods;
#[allow(clippy::module_inception)]
mod policy;
mod position_mode;
mod schedule;
mod sparse_prefill;

pub use methods::{MethodInfo, methods};
pub use policy::Policy;
pub use position_mode::PositionMode;
pub use schedule::{AppendOnly, PrefillCompression, Schedule};
pub use sparse_prefill::SparsePrefill;

pub use crate::budget::{Budget, Protect, Recent};
