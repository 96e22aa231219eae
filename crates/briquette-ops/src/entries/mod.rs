//! Entries of a layer: their attention statistics, their clusters, and selections of them.

mod append;
mod clustering;
mod columns;
mod count;
mod gather;
mod heads;
mod layer;
mod ops;
mod quantize;
mod quantize_fp8;
mod ranks;
mod selection;
mod statistics;
mod words;

pub use append::{AppendColumn, AppendInput};
pub use clustering::Clustering;
pub(crate) use columns::found_columns;
pub use columns::{iota, offset_per_head, slice_per_head};
pub use count::CountInput;
pub use gather::{
    gather_entries, gather_positions, gather_rows, gather_scalars, slice_rows_per_head,
};
pub use heads::{group_mean, outside_window};
pub use layer::Entries;
pub use ops::EntryOps;
pub use quantize::{QuantizeInput, quantize};
pub use quantize_fp8::quantize_fp8;
pub use selection::{Selection, Split, bucketed_width, bucketed_widths, padding_mask};
pub use statistics::{AttentionStatistics, Statistic};
pub use words::{pack_words, unpack_words, words_of};
