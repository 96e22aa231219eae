//! Policies as they are written on a command line or in a run file: a method or a policy file, with
//! changes.

mod change;
mod named;
mod text;
mod written;

pub use named::NamedPolicy;
pub(crate) use text::method;
pub use text::{inputs, is_file, parse, read, split};
pub use written::{AMPLE, Written};
