//! Clusters: entries that several tokens share (EMS).

mod evict;
mod reorder;
mod scores;
mod sort;
