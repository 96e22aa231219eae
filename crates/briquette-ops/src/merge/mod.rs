//! Merging: the most similar rows, and weighted sums of rows.

mod accumulate;
mod ema;
mod evict;
mod evict_spreading;
mod nearest;
mod ops;
mod weighted;

pub use accumulate::AccumulateInput;
pub use ema::{EmaInput, EmaOutput};
pub(crate) use evict::weakest;
pub use evict::{EvictInput, EvictMergeInput, SlotRows};
pub use evict_spreading::EvictSpreadInput;
pub use nearest::{NearestInput, NearestOutput};
pub use ops::MergeOps;
pub use weighted::{MergeInput, merge};
