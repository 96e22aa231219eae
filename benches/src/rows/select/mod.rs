//! Selection of entries, and their move into less room.

pub(super) mod compact;
pub(super) mod ragged;
pub(super) mod top_k;
