//! Tasks made from a seed, without a download.
//!
//! Each family is a struct of parameters, read from a run file, that makes
//! [samples](crate::tasks::Sample). Lengths are tokens of prompt, questions and answers together,
//! by [`Sample::tokens`](crate::tasks::Sample::tokens): never more, and for tasks that hide
//! something in running text exactly as many. Every sample has random numbers of its own, so that
//! another length, depth or sample changes no other; samples that differ in their depth only share
//! all but the place of what is asked for.

mod cell;
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
