//! Knorm: Devoto et al., 2024, *A Simple and Effective L2 Norm-Based Strategy for KV Cache
//! Compression* ([arXiv 2406.11430](https://arxiv.org/abs/2406.11430)).
//!
//! ```text
//! s[j] = −‖k[j]‖
//! ```
//!
//! Protected: nothing.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{LayerView, Result, ops::norm, score::Scorer};

/// Negated length of a key: short keys are kept (Devoto et al., 2024, [arXiv
/// 2406.11430](https://arxiv.org/abs/2406.11430)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Knorm {}

impl Scorer for Knorm {
    fn name(&self) -> &str {
        "knorm"
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        Ok(norm(view.keys()?).neg().squeeze_dim::<3>(3))
    }
}
