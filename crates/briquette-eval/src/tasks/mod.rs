//! Tasks: prompts with a known answer, and text whose next token is known.

mod assemble;
pub mod files;
pub mod haystack;
pub mod needle;
mod needle_template;
mod question;
pub mod sample;
pub(crate) mod seed;
pub mod synthetic;
mod task_spec;
pub mod text;

pub use needle_template::NeedleTemplate;
pub use question::Question;
pub use sample::{Sample, Samples, Task, Turn};
pub use task_spec::TaskSpec;
