//! Whole generation at the settings of the papers. What would take hours is measured at its start,
//! in its middle and at its end.

mod line;
mod measure;
mod tables;

pub use line::{Line, Point, markdown, simpson};
pub use measure::{Measured, Plan};
pub use tables::{Case, NAMES, Published, Run, Table};
