//! Files: one reader for all input, and one writer for all output.

mod read;
mod write;

pub use read::{LONGEST, Reader, is_stop, open, read, read_text, regular, stop_by};
pub use write::{beside, check, replace};
