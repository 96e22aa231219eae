//! A model measured over prompts, policies and budgets.

mod answer;
mod axes;
mod run;
mod summary;

pub use answer::{Answer, Question};
pub use axes::{Axes, Entry};
pub(crate) use run::Runner;
pub use run::{Answers, run};
pub use summary::{Accuracy, Summary, summarize};
