//! Q-Filter: Godey et al., 2025, *Q-Filters: Leveraging QK Geometry for Efficient KV Cache
//! Compression* ([arXiv 2503.02812](https://arxiv.org/abs/2503.02812)).
//!
//! ```text
//! s[j] = k[j] · u      with u the first right singular vector of the queries of a head
//! ```
//!
//! Protected: nothing.

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::table::table;
use crate::{LayerView, Result, score::Scorer};

/// Length of a key along the direction that the queries of its head share: k · u. Q-Filter
/// (Godey et al., 2025, [arXiv 2503.02812](https://arxiv.org/abs/2503.02812)).
///
/// u is the first right singular vector of the queries, from the model's
/// [profile](crate::QueryStatistics::directions), turned so that queries point along it: up to a
/// positive factor, the score is the mean product of queries with the key. Published filters point
/// the other way, and code that reads them scores by −k · u.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QFilter {}

impl Scorer for QFilter {
    fn name(&self) -> &str {
        "q-filter"
    }

    fn reads_profile(&self) -> bool {
        true
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let statistics = view.query_statistics(self.name())?;
        let keys = view.encoded_keys(self.name())?.cast(DType::F32);
        let direction = table(&statistics.directions, view.layer, &keys.device());
        Ok((keys * direction).sum_dim(3).squeeze_dim(3))
    }
}
