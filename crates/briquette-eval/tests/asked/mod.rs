//! The tasks of a run file that ask.

#![allow(dead_code)] // each test file uses its part

use std::path::Path;

use briquette_eval::{
    run::{Planned, Tasks, Work},
    tasks::{Question, Task},
};

/// A task with its label.
pub(crate) struct Asked {
    pub(crate) label: String,
    pub(crate) ask: Vec<Question>,
    pub(crate) task: Box<dyn Task>,
}

/// All of them, with paths that begin at `base`.
pub(crate) fn asked(tasks: &Tasks, base: &Path) -> Vec<Asked> {
    let asked = |Planned { label, work }| match work {
        Work::Ask { task, ask } => Asked { label, ask, task },
        other => panic!("{other:?}"),
    };
    tasks.planned(base).into_iter().map(asked).collect()
}
