//! Tasks read from the files benchmarks are published as.
//!
//! A prompt is the published one, cut in two where its context ends:
//! [`Sample::context`](crate::tasks::Sample) is what precedes the question, the first turn is the
//! rest. The two are tokenized one by one, so that the same tokens are asked before and after
//! compression; a tokenizer that would join the last characters of one and the first of the other
//! gives a token more than for the prompt as one text, and one that opens every text with a token
//! of its own (as the space of SentencePiece) opens the question with it too.
//!
//! No file is held as a whole: it is read record by record, and only the samples drawn are kept.
//! Prompts are those of base models, without a chat template.

mod choose;
mod common;
mod coqa;
mod fields;
mod file_task;
mod gsm8k;
mod infinite_bench;
mod long_bench;
mod long_bench_v2;
mod prompt;
mod published;
mod questions;
mod read;
mod truthful_qa;
mod zero_scrolls;

pub use coqa::{Coqa, History};
pub use gsm8k::Gsm8k;
pub use infinite_bench::InfiniteBench;
pub use long_bench::LongBench;
pub use long_bench_v2::LongBenchV2;
pub use questions::Questions;
pub use truthful_qa::TruthfulQa;
pub use zero_scrolls::ZeroScrolls;

pub(crate) use fields::records;
pub(in crate::tasks) use published::fill;

use common::{checked, named_by};
