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
mod variables;
mod words;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use key_value::{KeyValue, KeyValueForm};
pub use multi_turn::MultiTurn;
pub use names::Kind;
pub use needle::{Needle, NeedleForm};
pub use passages::{PassageCount, PassageRetrieval};
pub use source::Source;
pub use variables::{VariableForm, VariableTracking};
pub use words::{CommonWords, FrequentWords};

pub use crate::tasks::{Labelled, TaskSpec};
use common::{answer_room, both};

use crate::tasks::task_spec::{labelled, resolve};

/// Synthetic tasks by family, as a run file lists them: `[[tasks.needle]]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
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

impl Synthetic {
    /// All tasks, family by family.
    pub fn tasks(&self) -> Vec<Labelled> {
        let Self {
            needle,
            variable_tracking,
            common_words,
            frequent_words,
            passage_retrieval,
            passage_count,
            key_value,
            multi_turn,
        } = self;
        let mut tasks = labelled(needle);
        tasks.extend(labelled(variable_tracking));
        tasks.extend(labelled(common_words));
        tasks.extend(labelled(frequent_words));
        tasks.extend(labelled(passage_retrieval));
        tasks.extend(labelled(passage_count));
        tasks.extend(labelled(key_value));
        tasks.extend(labelled(multi_turn));
        tasks
    }

    /// Takes relative paths as relative to `base`, the folder of the run file.
    pub fn resolve(&mut self, base: &Path) {
        resolve(&mut self.needle, base);
        resolve(&mut self.variable_tracking, base);
        resolve(&mut self.common_words, base);
        resolve(&mut self.frequent_words, base);
        resolve(&mut self.passage_retrieval, base);
        resolve(&mut self.passage_count, base);
        resolve(&mut self.key_value, base);
        resolve(&mut self.multi_turn, base);
    }
}
