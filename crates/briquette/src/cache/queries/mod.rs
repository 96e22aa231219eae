//! Queries that a layer holds between calls, and the sums made of them.

pub(super) mod chunk_sums;
pub(super) mod log;
pub(super) mod window;
