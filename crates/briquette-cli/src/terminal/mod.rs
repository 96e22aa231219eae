//! Output to the terminal and to files, and input from the terminal.

pub(crate) mod excerpt;
pub(crate) mod hints;
pub(crate) mod interrupt;
pub(crate) mod lines;
pub(crate) mod output;
pub(crate) mod output_gate;
pub(crate) mod progress;
pub(crate) mod quiet;
pub(crate) mod room;
pub(crate) mod typed;
