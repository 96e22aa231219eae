//! The attention of a prompt on Hopper's tensor cores.

mod kernel;
mod launch;

pub(super) use launch::launch;
