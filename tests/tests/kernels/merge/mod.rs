//! Merging: nearest rows, and weighted sums of rows.

mod accumulate;
mod evict;
mod nearest;
mod weighted;
