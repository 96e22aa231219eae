//! Reports of results, for people and for programs.

mod budget_axis;
pub(crate) mod date;
pub(crate) mod environment;
mod files;
pub mod html;
mod markdown;
mod mask;
mod methods;
mod plain_name;
pub mod plot;
mod summary;
pub(crate) mod table;
mod tune;

pub use environment::Environment;
pub(crate) use files::Marked;
pub use mask::MaskReport;
pub(crate) use methods::{methods, methods_are_cut};
pub use summary::summary;
pub use tune::TuneReport;

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
