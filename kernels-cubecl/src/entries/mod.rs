mod append;
mod count;
mod ranks;

pub(crate) use self::append::{append_checked, check_append};
pub use self::{append::append, count::count, ranks::ranks};
