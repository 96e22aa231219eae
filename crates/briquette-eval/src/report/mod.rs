//! What a grid found, for people and for programs.

mod date;
mod methods;
mod needle;
pub mod plot;
mod table;

pub(crate) use methods::methods;
pub use needle::{Cell, Entry, NeedleReport, Settings};
