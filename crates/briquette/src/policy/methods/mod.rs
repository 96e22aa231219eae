//! The named methods, each a composition of stages: a table of them, and a file per family.

mod attention;
mod combinations;
mod keys;
mod merging;
mod other;
mod profiled;
mod table;
mod two_pass;

pub use table::{MethodInfo, methods};
