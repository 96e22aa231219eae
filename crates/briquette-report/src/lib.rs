//! Reports of results, for people and for programs.

mod align;
mod budget_axis;
mod error;
mod files;
pub mod html;
mod latex;
mod markdown;
mod methods;
mod plot;
mod summary;
pub mod table;
mod tune;

pub use error::{Error, Result};
pub use files::Marked;
pub use methods::methods;
pub use summary::summary;
pub use tune::TuneReport;

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
