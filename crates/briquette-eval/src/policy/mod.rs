//! Policies as they are written on a command line or in a run file: a method or a policy file, with
//! changes.

mod named;
mod text;

pub use briquette::policy::text::{AMPLE, Written};

pub use named::NamedPolicy;
pub(crate) use text::method;
pub use text::{inputs, is_file, parse, read, split};
