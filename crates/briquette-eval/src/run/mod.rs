//! Runs: models, policies and tasks of a run file, every one with every other, kept as they come.
//!
//! ```text
//! RunFile ── Tasks, Policies, Models ──> Plan ──> execute ──> Results (a journal) ──> Summary
//!                                                    │
//!                                    Shard i/n ──────┴──> merge
//! ```
//!
//! - [`RunFile`] is what the user writes;
//! - [`OwnPolicy`] and [`Planned`] are policies and tasks that are given in code;
//! - [`Plan`] is every unit it asks for, each with its [`Key`](crate::record::Key);
//! - [`estimate()`] measures a few of them to say how long all take;
//! - [`execute()`] runs the units that the results do not hold yet;
//! - [`Results`] is the file they are kept in, [`begin()`] opens it;
//! - [`Shard`] is the part of a plan that one of several machines runs, [`merge()`] joins the
//!   parts;
//! - [`Summary`] is the table at the end, [`ScoredRun`] that of the same answers under other
//!   metrics.

mod ask;
mod batch;
mod begin;
mod budget;
mod candidate;
mod estimate;
mod execute;
mod fidelity;
mod file;
mod fitted;
mod folder;
mod form;
mod found;
mod header;
mod line;
mod merge;
mod model;
mod own;
mod pace;
mod plan;
mod policies;
mod prompts;
mod rescoring;
mod results;
mod scored;
mod shard;
mod shared;
mod summary;
mod tasks;
mod text;
mod twice;
mod weak;

pub use batch::BatchLimit;
pub use begin::{begin, check_folder};
pub use candidate::FULL;
pub use estimate::{TimeNeeded, estimate};
pub use execute::{Executed, Failure, Progress, Runner, Split, execute};
pub use fidelity::FidelityTask;
pub use file::RunFile;
pub use fitted::FittedBudget;
pub(crate) use form::ChatForm;
pub use found::Measure;
pub use header::{Header, ModelHeader};
pub use line::Line;
pub use merge::{Merged, Missing, merge};
pub use model::{Dtype, ModelSpec, OpenModel};
pub use own::OwnPolicy;
pub use plan::{ModelPlan, Plan, Share, Unit};
pub use policies::PolicySpec;
pub use prompts::{PlannedPrompt, PlannedTurn};
pub use rescoring::Rescoring;
pub use results::{Numbered, Read, Results, read_results};
pub use scored::ScoredRun;
pub use shard::Shard;
pub use summary::{Row, Summary, Unavailable};
pub use tasks::{Planned, Tasks, Work};
pub use text::{Protocol, TextTask};
pub use weak::{FIRST_PROMPTS, weak};
