//! What a layer holds: entries, what is counted of them, which tokens share them, and which of them are selected.

mod columns;
mod gather;
mod heads;
mod layer;
mod selection;
mod sharing;
mod statistics;

pub use columns::{aligned, counted, moved};
pub use gather::{aligned_rows, gather_entries, gather_positions, gather_rows, gather_scalars};
pub use heads::{group_mean, outside_window};
pub use layer::Entries;
pub use selection::{Selection, Split, few_widths, few_widths_from, fillers};
pub use sharing::Sharing;
pub use statistics::{AttentionStatistics, Statistic};
