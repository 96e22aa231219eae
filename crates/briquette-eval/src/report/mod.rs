//! Reports of results, for people and for programs.

mod budget_axis;
mod compare;
pub(crate) mod date;
pub(crate) mod environment;
mod fidelity;
mod files;
pub mod html;
mod markdown;
mod mask;
mod methods;
mod needle;
mod perplexity;
mod plain_name;
pub mod plot;
pub(crate) mod table;
mod tune;
mod weak;

pub use compare::CompareReport;
pub use environment::Environment;
pub use fidelity::{FidelityReport, FidelityRow, FidelitySummary};
pub(crate) use files::Marked;
pub use mask::MaskReport;
pub(crate) use methods::{methods, methods_are_cut};
pub use needle::{Cell, Entry, NeedleReport, Settings};
pub use perplexity::{PerplexityReport, PerplexityRow};
pub use tune::TuneReport;
pub(crate) use weak::weak;

fn plural(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
