//! Parts that all synthetic tasks have, and the part that each family has for itself.

use std::path::Path;

use super::cell::Cell;
use crate::{Result, tasks::Sample};

/// A family's own part of its task.
pub(super) trait Family {
    /// Name in labels and errors, which the random numbers of its samples begin with too.
    const NAME: &'static str;

    /// Label of a task that a run file gives none.
    fn default_label(&self) -> String;

    /// Takes its relative paths, if it has some, as relative to `base`.
    fn resolve_paths(&mut self, _base: &Path) {}

    fn make(&self, cells: &[Cell<'_>]) -> Result<Vec<Sample>>;
}

/// Declares the task of a [`Family`] by its fields in run files with their defaults, of which those
/// that all synthetic tasks have need not be named. `at depths` is for a family where something
/// has a depth.
macro_rules! synthetic_task {
    ($(#[$about:meta])* pub struct $task:ident: $samples:literal samples $(at $depths:ident)? {
        $($(#[$field_about:meta])* pub $field:ident: $type:ty = $default:expr,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct $task {
            /// Label in tables.
            #[serde(skip_serializing_if = "Option::is_none")]
            pub label: Option<String>,
            /// When the question comes; of several, the first.
            #[serde(deserialize_with = "crate::tasks::question::one_or_more")]
            pub ask: Vec<$crate::tasks::Question>,
            /// Tokens of prompt, questions and answers, at most.
            pub lengths: Vec<usize>,
            $(
                /// Depths of what is asked for first, in percent of all that it lies in.
                pub $depths: Vec<u32>,
            )?
            /// Samples of each length, and of each depth.
            pub samples: usize,
            $($(#[$field_about])* pub $field: $type,)*
        }

        impl Default for $task {
            fn default() -> Self {
                Self {
                    label: None,
                    ask: vec![$crate::tasks::Question::Before, $crate::tasks::Question::After],
                    lengths: vec![1024],
                    $($depths: vec![0, 25, 50, 75, 100],)?
                    samples: $samples,
                    $($field: $default,)*
                }
            }
        }

        impl $crate::tasks::TaskSpec for $task {
            fn label(&self) -> String {
                self.label.clone().unwrap_or_else(|| self.default_label())
            }

            fn ask(&self) -> &[$crate::tasks::Question] {
                &self.ask
            }

            fn resolve(&mut self, base: &::std::path::Path) {
                self.resolve_paths(base);
            }
        }

        impl $crate::tasks::Task for $task {
            fn longest(&self) -> Option<usize> {
                self.lengths.iter().copied().max()
            }

            fn samples(
                &self,
                tokenizer: &::briquette_models::Tokenizer,
                seed: u64,
            ) -> $crate::Result<Vec<$crate::tasks::Sample>> {
                let grid = $crate::tasks::synthetic::cell::Grid {
                    task: Self::NAME,
                    lengths: &self.lengths,
                    depths: None$(.or(Some(self.$depths.as_slice())))?,
                    samples: self.samples,
                    ask: &self.ask,
                };
                self.make(&grid.cells(tokenizer, seed)?)
            }
        }
    };
}

pub(super) use synthetic_task;
