//! Tasks: prompts with a known answer, and text whose next token is known.

pub mod haystack;
pub mod needle;
pub(crate) mod seed;
pub mod text;
