//! Selection of entries, and their move into less room.

mod compact;
mod ragged;
mod robust;
mod top_k;
