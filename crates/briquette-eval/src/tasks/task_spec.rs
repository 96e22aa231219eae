//! Settings of a task that a run file has for every task, whatever makes its samples.

use std::path::Path;

use super::Task;
use crate::tasks::Question;

/// A task as a run file specifies it.
pub trait TaskSpec: Task + Clone {
    /// Label of the task in tables: its own, or the family with what distinguishes it, as
    /// `needle-4keys`.
    fn label(&self) -> String;

    /// When the question comes.
    fn ask(&self) -> &[Question];

    /// Takes relative paths as relative to `base`.
    fn resolve(&mut self, base: &Path);
}
