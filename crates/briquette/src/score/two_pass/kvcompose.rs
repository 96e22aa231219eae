//! KVCompose: Akulov et al., 2025, *KVCompose: Efficient Structured KV Cache Compression with
//! Composite Tokens* ([arXiv 2509.05165](https://arxiv.org/abs/2509.05165)).
//!
//! ```text
//! a[h, j] = mean over g of max over m of softmax(q_m · k / √d)[j]
//! s[h, j] = a[h, j] + mean over h of a[h, j]
//!
//! over the tokens m read again, the query heads g of a group, the kv heads h of the layer
//! ```
//!
//! Protected: nothing.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Repeat, Scorer},
};

/// Maximum attention that a token receives while the model reads the prompt a second time: the mean
/// over the query heads that share its kv head, plus the mean over the layer. KVCompose (Akulov et
/// al., 2025, [arXiv 2509.05165](https://arxiv.org/abs/2509.05165)).
///
/// The model runs a second time, on a [`Reconstruction`](crate::Reconstruction): the prompt
/// follows itself, with nothing in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KvCompose {
    /// Number of tokens read at a time.
    pub tokens: usize,
    /// Whether the mean over the layer's heads is added.
    pub layer_mean: bool,
}

impl Default for KvCompose {
    /// Defaults: 2,048 tokens at a time, with the mean of the layer.
    fn default() -> Self {
        Self { tokens: 2048, layer_mean: true }
    }
}

impl Scorer for KvCompose {
    fn name(&self) -> &str {
        "kvcompose"
    }

    fn summary(&self) -> String {
        let mean = if self.layer_mean { ", with the layer's mean" } else { "" };
        format!("{} {}{mean}", self.name(), self.tokens)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::second_pass(Repeat {
            tokens: self.tokens,
            normalize: false,
            reread: true,
        })
    }

    fn check(&self) -> Result<()> {
        check::count("score.tokens", self.tokens)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let given = view.given(self.name())?.clone();
        if self.layer_mean { Ok(given.clone() + view.layer_mean(given)) } else { Ok(given) }
    }
}
