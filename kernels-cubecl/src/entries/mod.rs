mod append;
mod count;
mod quantize;
mod ranks;

pub(crate) use self::append::{append_checked, check_append};
pub use self::{
    append::append,
    count::count,
    quantize::{quantize, quantize_fp8},
    ranks::ranks,
};
