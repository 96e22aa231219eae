//! Evaluation of KV-cache compression without training: tasks with known answers, runs over
//! policies and budgets, results with confidence intervals. The crate `briquette-report` shows
//! them, and `briquette-cli` has the command `briquette`.
//!
//! - [`tasks`] build prompts with known answers;
//! - [`calibrate`] measures which heads retrieve and which layers suffer, for the policies that
//!   ask;
//! - [`mask`] silences heads, to see which of them retrieve;
//! - [`fidelity`] measures how far a model on a compressed cache is from itself on the full one;
//! - [`metrics`] score answers, and [`score`] those that were given elsewhere or before;
//! - [`record`] is what a run finds, a line a sample;
//! - [`run`] puts models, policies and tasks of a run file through all of it;
//! - [`journal`] keeps results as they come;
//! - [`fingerprint`] and [`profiles`] tell whose results and profiles are whose;
//! - [`prefix`] keeps compressed prompts in files;
//! - [`stats`] turns counts into shares with intervals;
//! - [`tune`] finds the policy that serves a model best in a share of the memory;
//! - [`policy`] reads policies as people write them, [`environment`] says where they were measured;
//! - [`files`] reads texts, and writes files whole or not at all.

pub mod calibrate;
mod date;
pub mod environment;
mod error;
pub mod fidelity;
pub mod files;
pub mod fingerprint;
mod jobs;
pub mod journal;
pub mod mask;
pub mod metrics;
mod observe;
pub mod policy;
pub mod prefix;
pub mod profiles;
pub mod record;
pub mod record_set;
pub mod run;
pub mod score;
pub mod settings;
pub mod stats;
pub mod steering;
pub mod tasks;
mod tensors;
#[cfg(test)]
mod testing;
pub mod tune;
mod wall_time;
pub mod warnings;

pub use error::{Error, Result};
pub use wall_time::wall_seconds;
