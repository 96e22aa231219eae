//! Training data: prose, and retrieval tasks written into it.

mod corpus;
mod loader;
mod numbers;
mod tasks;

pub use corpus::{Corpus, PREPARED, Words};
pub use loader::Loader;
pub(crate) use loader::{Draw, generator};
pub use tasks::{Drawn, Mixture, Tasks};

/// The tokens every tokenizer of this program begins with, in this order.
pub(crate) const BEGIN: u32 = 0;
pub(crate) const END: u32 = 1;
pub(crate) const PAD: u32 = 2;
