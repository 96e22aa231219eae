//! Evaluation of KV-cache compression without training: tasks with known answers, grids over policies and
//! budgets, reports with confidence intervals. The command `briquette` is this crate's binary.
//!
//! - [`tasks`] build prompts with known answers;
//! - [`grid`] runs a model over them, for every policy;
//! - [`stats`] turns counts into shares with intervals;
//! - [`report`] writes tables, CSV, JSON and pictures;
//! - [`cli`] is the command line.

pub mod cli;
mod error;
pub mod grid;
pub mod report;
pub mod stats;
pub mod tasks;

pub use error::{Error, Result};
