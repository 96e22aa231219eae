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

/// A task with its label, as a run measures it.
#[derive(Debug)]
pub struct Labelled {
    /// Label in tables. Two tasks may have the same: whoever runs them together has to refuse that.
    pub label: String,
    /// When the question comes.
    pub ask: Vec<Question>,
    /// Makes its samples.
    pub task: Box<dyn Task>,
}

/// Tasks with their labels.
pub(super) fn labelled<F: TaskSpec + 'static>(specs: &[F]) -> Vec<Labelled> {
    let one = |spec: &F| Labelled {
        label: spec.label(),
        ask: spec.ask().to_vec(),
        task: Box::new(spec.clone()),
    };
    specs.iter().map(one).collect()
}

/// Takes relative paths as relative to `base`.
pub(super) fn resolve<F: TaskSpec>(specs: &mut [F], base: &Path) {
    specs.iter_mut().for_each(|spec| spec.resolve(base));
}
