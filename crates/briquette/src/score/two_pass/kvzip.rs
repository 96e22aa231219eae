//! KVzip: Kim et al., 2025, *KVzip: Query-Agnostic KV Cache Compression with Context
//! Reconstruction* ([arXiv 2505.23416](https://arxiv.org/abs/2505.23416)).
//!
//! ```text
//! s[j] = max over m, g of softmax(q_m · k / √d)[j]                          KVzip
//! s[j] = max over m, g of softmax(q_m · k / √d)[j] · ‖W_O v_j‖ / ‖h_m‖      KVzip+
//!
//! over the tokens m that repeat the prompt and the query heads g of a group
//! ```
//!
//! Protected: the first 4 tokens.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Repeat, Scorer},
};

/// Maximum attention that a token receives while the model repeats the prompt, over all queries and
/// the query heads that share its kv head: KVzip (Kim et al., 2025, [arXiv
/// 2505.23416](https://arxiv.org/abs/2505.23416)).
///
/// The model runs a second time, on a [`Reconstruction`](crate::Reconstruction).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KvZip {
    /// Number of tokens repeated at a time.
    pub tokens: usize,
    /// Whether a weight is divided by the length of the hidden state of its query and multiplied by
    /// ‖W_O v‖: KVzip+. It reads the model's [output
    /// projections](crate::CacheConfig::with_output_weights).
    #[serde(default)]
    pub normalize: bool,
}

impl Default for KvZip {
    /// Defaults of KVzip: 2,048 tokens at a time, weights as they are.
    fn default() -> Self {
        Self { tokens: 2048, normalize: false }
    }
}

impl Scorer for KvZip {
    fn name(&self) -> &str {
        "kvzip"
    }

    fn summary(&self) -> String {
        let normalize = if self.normalize { ", normalized" } else { "" };
        format!("{} {}{normalize}", self.name(), self.tokens)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::second_pass(Repeat {
            tokens: self.tokens,
            normalize: self.normalize,
            reread: false,
        })
    }

    fn check(&self) -> Result<()> {
        check::count("score.tokens", self.tokens)
    }

    fn reads_output_weights(&self) -> bool {
        self.normalize
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        Ok(view.given(self.name())?.clone())
    }
}
