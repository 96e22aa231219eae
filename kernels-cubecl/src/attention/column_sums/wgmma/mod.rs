//! Sums over columns on Hopper's tensor cores, causally.

mod kernel;
mod launch;

pub(super) use launch::launch;
