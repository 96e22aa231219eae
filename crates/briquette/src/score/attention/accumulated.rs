//! H2O: Zhang et al., 2023, *H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
//! Language Models* ([arXiv 2306.14048](https://arxiv.org/abs/2306.14048)). CaM, KVMerger and D2O
//! score by it too.
//!
//! ```text
//! s[j] = Σ A[i, j] over all queries i so far, of the prompt and of decoding
//! ```
//!
//! Protected: the last tokens, half of the budget.

use burn::tensor::{FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result,
    ops::{Statistic, constant_floats},
    score::{AttentionRequest, Dependencies, Scorer},
};

/// Attention weight that a token has received from all queries since it was written, prompt and
/// decoding together: H2O (Zhang et al., 2023), `F_score`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccumulatedAttention {
    /// Whether the sum is divided by the number of queries it was taken over.
    pub normalize: Normalize,
}

/// Divisor of an accumulated weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Normalize {
    /// No division: the sum, as in H2O.
    #[default]
    Sum,
    /// Number of queries that could see the token, which frees the score from its bias towards
    /// early tokens.
    Mean,
}

impl Scorer for AccumulatedAttention {
    fn name(&self) -> &str {
        "accumulated-attention"
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::column_sums()
    }

    fn depends_on(&self) -> Dependencies {
        Dependencies::none()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let sums = view.group_mean(view.statistic(Statistic::Sums, self.name())?);
        Ok(match self.normalize {
            Normalize::Sum => sums,
            Normalize::Mean => {
                let queries = queries_seen(view);
                sums / queries
            }
        })
    }
}

/// Number of queries that could see each entry, `[batch, kv_heads, entries]`, f32. A token sees
/// itself, so the last one was seen once.
fn queries_seen(view: &LayerView<'_>) -> Tensor<3> {
    let positions = view.positions().clone().cast(FloatDType::F32);
    let [batch, heads, columns] = positions.dims();
    if view.prompt {
        let seen: Vec<f32> = view.seen.iter().map(|&seen| seen as f32).collect();
        return constant_floats("queries seen", seen, [batch, 1, 1], &positions.device())
            - positions;
    }
    // A decoded token is the last of its row, and among the entries: the device knows its position.
    let last = positions.clone().reshape([batch, 1, heads * columns]).max_dim(2);
    last + 1.0 - positions
}
