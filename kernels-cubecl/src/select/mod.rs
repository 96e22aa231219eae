//! Selection of entries, and their move into less room.

mod compact;
mod robust;
mod to_padded;
mod to_ragged;
mod top_k;

pub use self::{
    compact::compact,
    robust::robust_scores,
    to_padded::pad,
    to_ragged::pack,
    top_k::{SelectOutput, select},
};
