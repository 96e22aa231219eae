//! Evaluation of KV-cache compression without training: tasks with known answers, runs over
//! policies and budgets, reports with confidence intervals. The command `briquette` is this crate's
//! binary.
//!
//! - [`tasks`] build prompts with known answers;
//! - [`calibrate`] measures which heads retrieve and which layers suffer, for the policies that
//!   ask;
//! - [`mask`] silences heads, to see which of them retrieve;
//! - [`fidelity`] measures how far a model on a compressed cache is from itself on the full one;
//! - [`metrics`] score answers, and [`score`] those that were given elsewhere;
//! - [`record`] is what a run finds, a line a sample;
//! - [`run`] puts models, policies and tasks of a run file through all of it;
//! - [`journal`] keeps results as they come;
//! - [`fingerprint`] and [`profiles`] tell whose results and profiles are whose;
//! - [`prefix`] keeps compressed prompts in files;
//! - [`stats`] turns counts into shares with intervals;
//! - [`tune`] finds the policy that serves a model best in a share of the memory;
//! - [`report`] writes tables, CSV, JSON, pictures, and the page of a run;
//! - [`cli`] is the command line.

mod cache_bytes;
pub mod calibrate;
pub mod cli;
mod error;
pub mod fidelity;
mod files;
pub mod fingerprint;
mod jobs;
pub mod journal;
pub mod mask;
pub mod metrics;
mod observe;
mod perplexity;
mod policy;
pub mod prefix;
pub mod profiles;
pub mod record;
mod record_set;
pub mod report;
pub mod run;
pub mod score;
mod settings;
pub mod stats;
pub mod tasks;
pub mod tune;

pub use error::{Error, Result};
