//! Clusters: entries that several tokens share (EMS).

mod extend;
mod global_local;
mod group;
mod ops;
mod regroup;
mod row_weights;

pub use extend::{ExtendInput, ExtendOutput};
pub use global_local::GlobalLocalInput;
pub use group::Groups;
pub use ops::ClusterOps;
pub use regroup::{ClassifyInput, ClassifyOutput, MergedRows, RegroupInput, RegroupOutput};
pub use row_weights::{RowWeightsInput, row_weights};
