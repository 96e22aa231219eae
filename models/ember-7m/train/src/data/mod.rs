//! Training data: prose, and retrieval tasks written into it.

mod chains;
mod corpus;
mod numbers;
mod tasks;

pub use corpus::{Corpus, copy_model, prepare};
pub use tasks::{Drawn, Mixture, Tasks, generator};

/// The tokens that the tokenizer begins with, in this order.
const BEGIN: u32 = 0;
const END: u32 = 1;
const PAD: u32 = 2;
