//! Sections of the page, one per file, each made from the same [`Data`](super::figure::Data).

mod accuracy;
mod fidelity;
mod heatmaps;
mod kept;
mod memory;
mod numbers;
mod pareto;
mod perplexity;
mod samples;
mod summary;

pub(super) use accuracy::accuracy;
pub(super) use fidelity::fidelity;
pub(super) use heatmaps::heat_maps;
pub(super) use kept::kept;
pub(super) use memory::memory;
pub(super) use numbers::numbers;
pub(super) use pareto::pareto;
pub(super) use perplexity::perplexity;
pub(super) use samples::samples;
pub(super) use summary::{choices, unavailable};
