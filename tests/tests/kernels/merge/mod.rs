//! Merging: nearest rows, and weighted sums of rows.

mod accumulate;
mod nearest;
mod weighted;
