//! Clusters: entries that several tokens share (EMS).

mod assign;
mod extend;
mod global_local;
mod reorder;
mod row_weights;
mod sort;

pub use self::{
    assign::classify, extend::extend, global_local::global_local, reorder::regroup,
    row_weights::row_weights, sort::group,
};
