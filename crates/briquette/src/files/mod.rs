//! Files: one reader of all that is opened, and one writer of all that is kept.

mod read;
mod write;

pub use read::{LONGEST, Reader, is_stop, open, read, read_text, regular, stop_by};
pub use write::{beside, check, replace};
