//! The attention that each entry got on Hopper's tensor cores, causally.

mod kernel;
mod launch;

pub(super) use launch::launch;
