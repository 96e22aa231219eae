use crate::{
    attention::AttentionOps, cluster::ClusterOps, fallbacks::Fallback, merge::MergeOps,
    model::ModelOps, select::SelectOps,
};

/// All operations of a cache, and those of the model around it.
pub trait Ops: AttentionOps + SelectOps + MergeOps + ClusterOps + ModelOps {
    /// How often tensor operations answered for a kernel, by operation; nothing where there are no
    /// kernels to fall back from.
    fn fallbacks(&self) -> Vec<Fallback> {
        Vec::new()
    }
}

/// Burn's tensor operations, on any device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

impl AttentionOps for Reference {}
impl SelectOps for Reference {}
impl MergeOps for Reference {}
impl ClusterOps for Reference {}
impl ModelOps for Reference {}
impl Ops for Reference {}
