use std::fmt::Debug;

use burn::tensor::{Int, Tensor};

use super::{
    extend::{self, ExtendInput, ExtendOutput},
    global_local::{self, GlobalLocalInput},
    group::{self, Groups},
    regroup::{self, ClassifyInput, ClassifyOutput, RegroupInput, RegroupOutput},
    row_weights::{self, RowWeightsInput},
};
use crate::{error::Result, merge::MergeOps};

/// What only EMS needs: its scores, and the table of tokens that share entries.
pub trait ClusterOps: MergeOps + Debug + Send + Sync {
    /// Columns of each row sorted by their class, `[batch, kv_heads, columns]`: less than zero is none, the others are less
    /// than `number`.
    ///
    /// # Errors
    /// [`OpError::Execution`](crate::OpError::Execution) if the device failed.
    fn group(&self, classes: Tensor<3, Int>, number: usize) -> Result<Groups> {
        let _ = number;
        group::group(classes)
    }

    /// A table of entries that tokens share, with the tokens that have come since. See [`ExtendInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn extend(&self, input: ExtendInput<'_>) -> Result<ExtendOutput> {
        Ok(extend::extend(input))
    }

    /// For each column the entry it is in now, and what it is ranked by. See [`ClassifyInput`].
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn classify(&self, input: ClassifyInput<'_>) -> Result<ClassifyOutput> {
        Ok(regroup::classify(input))
    }

    /// What is known of columns, where they go. See [`RegroupInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn regroup(&self, input: RegroupInput<'_>) -> Result<RegroupOutput> {
        Ok(regroup::regroup(input))
    }

    /// For each row the sum of what its columns are ranked by, f32, `[batch, kv_heads, height]`. See [`RowWeightsInput`]
    /// for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn row_weights(&self, input: RowWeightsInput) -> Result<Tensor<3>> {
        row_weights::row_weights(input, |input| self.accumulate(input))
    }

    /// The Global-Local scores of EMS, f32, `[batch, kv_heads, columns]`. See [`GlobalLocalInput`] for shapes.
    ///
    /// # Errors
    /// [`OpError`](crate::OpError) if shapes do not fit.
    fn global_local(&self, input: GlobalLocalInput) -> Result<Tensor<3>> {
        Ok(global_local::global_local(input))
    }
}
