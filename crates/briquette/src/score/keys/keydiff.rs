//! KeyDiff: Park et al., 2025, *KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context
//! LLM Inference in Resource-Constrained Environments* ([arXiv
//! 2504.15364](https://arxiv.org/abs/2504.15364)).
//!
//! ```text
//! a    = mean over the entries of a head of k / ‖k‖
//! s[j] = −cos(k[j], a)
//! ```
//!
//! Protected: nothing.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result,
    ops::{precise_product, unit},
    score::{Scorer, support::at_entries},
};

/// Dissimilarity of a key to the others of its head: −cos(k, a), with a the mean of all keys at
/// unit length. KeyDiff (Park et al., 2025, [arXiv 2504.15364](https://arxiv.org/abs/2504.15364)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyDiff {}

impl Scorer for KeyDiff {
    fn name(&self) -> &str {
        "keydiff"
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let keys = at_entries(view, unit(view.keys()?));
        // A cosine does not mind whether it is that of the mean or of the sum.
        let anchor = unit(keys.clone().sum_dim(2));
        Ok(precise_product(keys, anchor.swap_dims(2, 3)).neg().squeeze_dim::<3>(3))
    }
}
