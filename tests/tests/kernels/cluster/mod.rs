//! Clusters: entries that several tokens share (EMS).

mod reorder;
mod scores;
mod sort;
