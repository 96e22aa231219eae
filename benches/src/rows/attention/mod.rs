//! Attention, scores of entries, and the rotation of queries.

pub(super) mod compressed;
pub(super) mod dense_ragged;
pub(super) mod rotary;
pub(super) mod scores;
