//! Measurements of a run file, and the commands that amount to one.

mod first_answers;
pub(crate) mod measurement;
pub(crate) mod one_task;
