//! Parts that all tasks from files have, and the part that each benchmark has for itself.

use std::path::PathBuf;

use briquette_models::Tokenizer;

use super::choose::Source;
use crate::{
    Result,
    tasks::{Question, Samples},
};

/// A benchmark's own part of its task.
pub(super) trait Benchmark {
    /// Name in errors.
    const NAME: &'static str;

    /// Label of a task that a run file gives none.
    fn default_label(&self) -> String;

    /// Path of the file that it reads beside `file`.
    fn second_file(&mut self) -> Option<&mut PathBuf> {
        None
    }

    fn read(&self, source: Source<'_>, tokenizer: &Tokenizer, seed: u64) -> Result<Samples>;
}

/// As benchmarks ask: everything in one prompt.
pub(super) fn before() -> Vec<Question> {
    vec![Question::Before]
}

/// Declares the task of a [`Benchmark`] by its fields in run files, of which those that all tasks
/// from files have need not be named: `file`, then its own, then the others.
macro_rules! file_task {
    ($(#[$about:meta])* pub struct $task:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $task {
            /// The file.
            pub file: ::std::path::PathBuf,
            $($own)*
            /// Samples, drawn by the seed; all if absent.
            #[serde(default)]
            pub samples: Option<usize>,
            /// Whether records that cannot be used are left out, and reported, instead of refused.
            #[serde(default)]
            pub skip_damaged: bool,
            /// Label in reports; one of the benchmark and the data set if absent.
            #[serde(default)]
            pub label: Option<String>,
            /// When it is asked; in the prompt if absent.
            #[serde(
                default = "crate::tasks::files::file_task::before",
                deserialize_with = "crate::tasks::question::one_or_more"
            )]
            pub ask: Vec<$crate::tasks::Question>,
        }

        impl $crate::tasks::TaskSpec for $task {
            fn label(&self) -> String {
                self.label.clone().unwrap_or_else(|| self.default_label())
            }

            fn ask(&self) -> &[$crate::tasks::Question] {
                &self.ask
            }

            fn resolve(&mut self, base: &::std::path::Path) {
                self.file = $crate::files::joined(base, &self.file);
                if let Some(path) = self.second_file() {
                    *path = $crate::files::joined(base, path);
                }
            }
        }

        impl $crate::tasks::Task for $task {
            fn samples(
                &self,
                tokenizer: &::briquette_models::Tokenizer,
                seed: u64,
            ) -> $crate::Result<Vec<$crate::tasks::Sample>> {
                $crate::tasks::Task::load(self, tokenizer, seed).map(|all| all.samples)
            }

            fn load(
                &self,
                tokenizer: &::briquette_models::Tokenizer,
                seed: u64,
            ) -> $crate::Result<$crate::tasks::Samples> {
                let source = $crate::tasks::files::choose::Source {
                    task: Self::NAME,
                    path: &self.file,
                    samples: self.samples,
                    skip_damaged: self.skip_damaged,
                    under_data: false,
                };
                self.read(source, tokenizer, seed)
            }
        }
    };
}

pub(super) use file_task;
