//! Evaluation of KV-cache compression without training: tasks with known answers, grids over
//! policies and budgets, reports with confidence intervals. The command `briquette` is this crate's
//! binary.
//!
//! - [`tasks`] build prompts with known answers;
//! - [`grid`] runs a model over them, for every policy;
//! - [`calibrate`] measures which heads retrieve and which layers suffer, for the policies that
//!   ask;
//! - [`mask`] silences heads, to see which of them retrieve;
//! - [`perplexity`] measures how well a model continues a text on a compressed cache;
//! - [`fidelity`] measures how far a model on a compressed cache is from itself on the full one;
//! - [`compare`] puts every method through all of it;
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
pub mod compare;
mod error;
pub mod fidelity;
mod files;
pub mod fingerprint;
pub mod grid;
mod jobs;
pub mod journal;
pub mod mask;
pub mod metrics;
mod observe;
pub mod perplexity;
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
