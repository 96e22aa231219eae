//! Clusters: entries that several tokens share (EMS).

pub(super) mod sort;
pub(super) mod tokens;
