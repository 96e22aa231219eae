//! Tasks: prompts with a known answer, and text whose next token is known.

mod assemble;
mod ember;
mod family;
pub mod files;
mod form;
pub mod generated;
pub mod haystack;
pub mod needle;
pub mod sample;
pub(crate) mod seed;
pub mod text;

pub use family::{Family, Labelled};
pub use form::Form;
pub use sample::{Sample, Samples, Task, Turn};
