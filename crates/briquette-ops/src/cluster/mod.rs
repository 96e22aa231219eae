//! Clusters: rows of keys and values that several tokens share (EMS).

mod assign;
mod evict;
mod extend;
mod global_local;
mod ops;
mod reorder;
mod row_weights;
mod sort;

pub use assign::{AssignClustersInput, AssignClustersOutput, MergedRows};
pub use evict::EvictClusterInput;
pub use extend::{ExtendInput, ExtendOutput};
pub use global_local::GlobalLocalInput;
pub use ops::ClusterOps;
pub use reorder::{ReorderTokensInput, ReorderTokensOutput};
pub use row_weights::{RowWeightsInput, row_weights};
pub use sort::ClusterOrder;
