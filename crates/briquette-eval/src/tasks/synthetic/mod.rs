//! Tasks made from a seed, without a download.
//!
//! Each family is a struct of parameters, read from a run file, that makes
//! [samples](crate::tasks::Sample). Lengths are tokens of prompt, questions and answers together,
//! by [`Sample::tokens`](crate::tasks::Sample::tokens): never more, and for tasks that hide
//! something in running text exactly as many. Every sample has random numbers of its own, so that
//! another length, depth or sample changes no other; samples that differ in their depth only share
//! all but the place of what is asked for.

mod cell;
mod common;
mod key_value;
mod multi_turn;
mod names;
mod needle;
mod passages;
mod source;
mod synthetic_task;
mod variables;
mod words;

pub use key_value::{KeyValue, KeyValueForm};
pub use multi_turn::MultiTurn;
pub use names::Kind;
pub use needle::{Needle, NeedleForm};
pub use passages::{PassageCount, PassageRetrieval};
pub use source::Source;
pub use variables::{VariableForm, VariableTracking};
pub use words::{CommonWords, FrequentWords};

pub use crate::tasks::{Labelled, TaskSpec};

use crate::tasks::task_spec::families;

families! {
    /// Synthetic tasks by family, as a run file lists them: `[[tasks.needle]]`.
    pub struct Synthetic {
        /// Needles in a haystack.
        pub needle: Vec<Needle>,
        /// Chains of variables.
        pub variable_tracking: Vec<VariableTracking>,
        /// The most common words of a list.
        pub common_words: Vec<CommonWords>,
        /// The most frequent words of a coded text.
        pub frequent_words: Vec<FrequentWords>,
        /// Which passage an excerpt is from.
        pub passage_retrieval: Vec<PassageRetrieval>,
        /// How many passages there are without the repeated ones.
        pub passage_count: Vec<PassageCount>,
        /// The value of a key.
        pub key_value: Vec<KeyValue>,
        /// Several questions about one context.
        pub multi_turn: Vec<MultiTurn>,
    }
}
