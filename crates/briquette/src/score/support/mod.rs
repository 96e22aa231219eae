//! Parts that scorers of several families share.

mod best;
mod draw;
mod entries;
mod inverse;

pub(crate) use best::best;
pub(crate) use draw::draw;
pub(crate) use entries::{FromFirst, at_entries, per_head, scored};
pub(crate) use inverse::inverse;
