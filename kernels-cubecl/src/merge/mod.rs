//! Merging: nearest rows, and weighted sums of rows.

mod accumulate;
mod ema;
mod nearest;
mod weighted;

pub(crate) use self::weighted::{check as check_merge, merge_checked};
pub use self::{accumulate::accumulate, ema::ema_weights, nearest::nearest, weighted::merge};
