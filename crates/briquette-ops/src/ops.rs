use crate::{
    attention::AttentionOps, cluster::ClusterOps, entries::EntryOps, fallbacks::Fallback,
    merge::MergeOps, model::ModelOps, select::SelectOps,
};

/// All operations of a cache and of the model around it.
pub trait Ops: AttentionOps + EntryOps + SelectOps + MergeOps + ClusterOps + ModelOps {
    /// Returns how often tensor operations took over from a kernel, per operation; empty where
    /// there are no kernels.
    fn fallbacks(&self) -> Vec<Fallback> {
        Vec::new()
    }
}

/// The reference of all operations: Burn's tensor operations, on any device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl AttentionOps for Reference {}
impl EntryOps for Reference {}
impl SelectOps for Reference {}
impl MergeOps for Reference {}
impl ClusterOps for Reference {}
impl ModelOps for Reference {}
impl Ops for Reference {}
