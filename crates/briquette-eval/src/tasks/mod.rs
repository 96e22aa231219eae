//! Tasks: prompts with a known answer.

pub mod haystack;
pub mod needle;
pub(crate) mod seed;
