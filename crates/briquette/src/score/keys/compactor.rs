//! Compactor: Chari and Van Durme, 2025, *Compactor: Calibrated Query-Agnostic KV Cache Compression
//! with Approximate Leverage Scores* ([arXiv 2507.08143](https://arxiv.org/abs/2507.08143)).
//!
//! ```text
//! s = β · z(leverage) + z(non-causal attention)      with z of mean 0 and deviation 1 over a layer
//! ```
//!
//! Protected: the first 8 tokens and the last 4.

use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    score::{AttentionRequest, Leverage, NonCausal, Scorer, support::scored},
};

/// Sum of leverage and non-causal attention, each with mean 0 and deviation 1 over a layer's heads
/// and tokens: Compactor (Chari and Van Durme, 2025, [arXiv
/// 2507.08143](https://arxiv.org/abs/2507.08143)).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compactor {
    /// First summand.
    pub leverage: Leverage,
    /// Second summand.
    pub attention: NonCausal,
    /// Factor of the first summand; if absent, the share of the entries that are dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blend: Option<f64>,
}

impl Scorer for Compactor {
    fn name(&self) -> &str {
        "compactor"
    }

    fn summary(&self) -> String {
        format!("{} + {}", self.leverage.summary(), self.attention.summary())
    }

    fn observes(&self) -> AttentionRequest {
        self.attention.observes()
    }

    fn check(&self) -> Result<()> {
        self.leverage.check()?;
        self.attention.check()?;
        self.blend.map_or(Ok(()), |blend| check::share("score.blend", blend))
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let mask = scored(view).float().cast(DType::F32);
        let leverage = normalized(self.leverage.score(view)?, mask.clone());
        let attention = normalized(self.attention.score(view)?, mask);
        let blend =
            view.lengths.chunks(view.shape.kv_heads).zip(view.budget).map(|(held, &budget)| {
                let held = held.iter().copied().max().unwrap_or(0).max(1);
                let goes = 1.0 - (budget as f64 / held as f64).min(1.0);
                self.blend.unwrap_or(goes) as f32
            });
        let data = TensorData::new(blend.collect::<Vec<f32>>(), [view.budget.len(), 1, 1]);
        let blend = Tensor::<3>::from_data(data, (&leverage.device(), DType::F32));
        Ok(leverage * blend + attention)
    }
}

/// Normalizes scores to mean 0 and deviation 1 over the entries of each batch row where `mask` is
/// 1, zero elsewhere: `[batch, heads, entries]`.
fn normalized(scores: Tensor<3>, mask: Tensor<3>) -> Tensor<3> {
    let total = |x: Tensor<3>| x.sum_dim(2).sum_dim(1);
    let number = total(mask.clone());
    let mean = total(scores.clone() * mask.clone()) / number.clone().clamp_min(1.0);
    let centred = (scores - mean) * mask;
    let variance = total(centred.clone().square()) / (number - 1.0).clamp_min(1.0);
    centred / variance.sqrt().clamp_min(1e-6)
}
