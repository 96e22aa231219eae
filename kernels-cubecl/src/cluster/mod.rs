//! Clusters: rows of keys and values that several tokens share (EMS).

mod assign;
mod evict;
mod extend;
mod global_local;
mod reorder;
mod row_weights;
mod sort;

pub(crate) use self::evict::{check_evict_cluster, evict_cluster_checked};
pub use self::{
    assign::assign_clusters, evict::evict_cluster, extend::extend, global_local::global_local,
    reorder::reorder_tokens, row_weights::row_weights, sort::sort_by_cluster,
};
