//! Merging: nearest rows, and weighted sums of rows.

mod accumulate;
mod ema;
mod evict;
mod nearest;
mod weighted;

pub use self::{
    accumulate::accumulate,
    ema::ema_weights,
    evict::{evict, evict_merging, evict_spreading},
    nearest::nearest,
    weighted::merge,
};
pub(crate) use self::{
    evict::{
        check_evict, check_evict_merging, check_evict_spreading, evict_checked,
        evict_merging_checked, evict_spreading_checked,
    },
    weighted::{check as check_merge, merge_checked},
};
