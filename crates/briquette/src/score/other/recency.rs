//! Local window: Beltagy et al., 2020, *Longformer: The Long-Document Transformer* ([arXiv
//! 2004.05150](https://arxiv.org/abs/2004.05150)); StreamingLLM: Xiao et al., 2023, *Efficient
//! Streaming Language Models with Attention Sinks* ([arXiv
//! 2309.17453](https://arxiv.org/abs/2309.17453)).
//!
//! ```text
//! s[j] = j
//! ```
//!
//! Protected: nothing by a local window, the first 4 tokens by StreamingLLM.

use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result,
    score::{Dependencies, Scorer},
};

/// Position of a token: the later it was written, the higher its score. With sinks protected this
/// is StreamingLLM (Xiao et al., 2023), without them a local window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recency {}

impl Scorer for Recency {
    fn name(&self) -> &str {
        "recency"
    }

    fn depends_on(&self) -> Dependencies {
        Dependencies::none()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        Ok(view.positions().clone().cast(FloatDType::F32))
    }
}
