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

impl Labelled {
    /// The task of a run file.
    pub(super) fn of(spec: &(impl TaskSpec + 'static)) -> Self {
        Self { label: spec.label(), ask: spec.ask().to_vec(), task: Box::new(spec.clone()) }
    }
}

/// Declares the tasks of a run file, of each family a list.
macro_rules! families {
    ($(#[$about:meta])* pub struct $all:ident {
        $($(#[$family_about:meta])* pub $family:ident: Vec<$task:ty>,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct $all {
            $($(#[$family_about])* pub $family: Vec<$task>,)*
        }

        impl $all {
            /// All tasks, family by family.
            pub fn tasks(&self) -> Vec<$crate::tasks::Labelled> {
                let mut tasks = Vec::new();
                $(tasks.extend(self.$family.iter().map($crate::tasks::Labelled::of));)*
                tasks
            }

            /// Takes relative paths as relative to `base`, the folder of the run file.
            pub fn resolve(&mut self, base: &::std::path::Path) {
                $(for task in &mut self.$family {
                    $crate::tasks::TaskSpec::resolve(task, base);
                })*
            }
        }
    };
}

pub(super) use families;
