use std::fmt::Debug;

use burn::tensor::{Int, Tensor};

use super::{
    assign::{self, AssignClustersInput, AssignClustersOutput},
    evict::{self, EvictClusterInput},
    extend::{self, ExtendInput, ExtendOutput},
    global_local::{self, GlobalLocalInput},
    reorder::{self, ReorderTokensInput, ReorderTokensOutput},
    row_weights::{self, RowWeightsInput},
    sort::{self, ClusterOrder},
};
use crate::{error::Result, merge::MergeOps};

/// Operations that only EMS needs: its scores, and the clusters of its tokens.
pub trait ClusterOps: MergeOps + Debug + Send + Sync {
    /// Sorts the columns of each head by their cluster, `[batch, kv_heads, columns]`: below zero is
    /// none, all others are below `number`.
    ///
    /// # Errors
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed.
    fn sort_by_cluster(&self, clusters: Tensor<3, Int>, number: usize) -> Result<ClusterOrder> {
        let _ = number;
        sort::sort_by_cluster(clusters)
    }

    /// Extends clusters by the tokens that have come since. See [`ExtendInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn extend(&self, input: ExtendInput<'_>) -> Result<ExtendOutput> {
        Ok(extend::extend(input))
    }

    /// Assigns each token to a cluster, and ranks it. See [`AssignClustersInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn assign_clusters(&self, input: AssignClustersInput<'_>) -> Result<AssignClustersOutput> {
        Ok(assign::assign_clusters(input))
    }

    /// Moves per-token metadata (positions, norms, statistics) to its new column. See
    /// [`ReorderTokensInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn reorder_tokens(&self, input: ReorderTokensInput<'_>) -> Result<ReorderTokensOutput> {
        Ok(reorder::reorder_tokens(input))
    }

    /// Sums the scores of the tokens of each row, f32, `[batch, kv_heads, height]`. See
    /// [`RowWeightsInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn row_weights(&self, input: RowWeightsInput) -> Result<Tensor<3>> {
        row_weights::row_weights(input, |input| self.accumulate(input))
    }

    /// Computes the Global-Local scores of EMS, f32, `[batch, kv_heads, columns]`. See
    /// [`GlobalLocalInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn global_local(&self, input: GlobalLocalInput) -> Result<Tensor<3>> {
        Ok(global_local::global_local(input))
    }

    /// Evicts the weakest cluster of each head, or merges it into the one that it is most redundant
    /// with, the oldest of equals, and gives its row to a new token: EMS (Li et al., 2024, section
    /// 4.2), for one decoded token at a budget. Rows do not move, and tensors that nobody else
    /// holds are not copied.
    ///
    /// Of clusters the one goes whose representative has the lowest score, of equal scores the
    /// newest; NaN is the lowest. Directions are weighted by the sums of the scores of tokens and
    /// made unit length, values by the same. Where a head has more tokens than it may, the one with
    /// the lowest score that represents no cluster is forgotten. See [`EvictClusterInput`] for
    /// shapes.
    ///
    /// # Errors
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed, and other
    /// [`OpError`](crate::OpError)s if shapes or types do not fit. Nothing is changed then.
    fn evict_cluster(&self, input: EvictClusterInput<'_>) -> Result<()> {
        evict::evict_cluster(input)
    }
}
