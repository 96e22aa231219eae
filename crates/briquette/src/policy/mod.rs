//! A policy: one composition of the four stages, when it runs, and what it never drops.
//!
//! A paper's method is a named composition and nothing more; [`methods`](crate::methods()) is the
//! table of them.

mod budget;
mod builder;
mod change;
mod check;
mod file;
pub(crate) mod methods;
#[allow(clippy::module_inception)]
pub(crate) mod policy;
mod position_mode;
pub(crate) mod schedule;
pub(crate) mod sparse_prefill;
#[doc(hidden)]
pub mod text;

pub use methods::MethodInfo;
pub(crate) use policy::Policy;
pub use position_mode::PositionMode;
pub use schedule::AppendOnly;
pub(crate) use schedule::{PrefillCompression, Schedule};
pub(crate) use sparse_prefill::SparsePrefill;

pub use crate::budget::{Protect, Recent};
