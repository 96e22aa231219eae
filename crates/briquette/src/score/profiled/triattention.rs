//! TriAttention: Mao et al., 2026, *TriAttention: Efficient Long Reasoning with Trigonometric KV
//! Compression* ([arXiv 2604.04921](https://arxiv.org/abs/2604.04921)).
//!
//! ```text
//! s[j] = mean over Δ = 1, 2, 4, … of Σ_f |q̄_f| · |k_f| · cos(ω_f (t + Δ − p) + φ_f)
//!        + Σ_f (E|q_f| − |q̄_f|) · |k_f|
//! ```
//!
//! Protected: the last tokens, a sixteenth of the budget.

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use super::table::table;
use crate::{
    LayerView, Result, check,
    ops::precise_product,
    score::{AttentionRequest, Scorer},
};

/// Attention that the mean query of a head will give a key at 1, 2, 4, … positions from now, plus a
/// term for the variation of query lengths: TriAttention (Mao et al., 2026, [arXiv
/// 2604.04921](https://arxiv.org/abs/2604.04921)).
///
/// For each pair of channels f that the rotary embedding turns together, with q̄ the mean query
/// before rotation and k the key: the mean over Δ of Σ |q̄_f| · |k_f| · cos(ω_f (t + Δ − p) + φ_f),
/// which is the product of q̄ rotated to t + Δ with the rotated key, and Σ (E|q_f| − |q̄_f|) ·
/// |k_f|. Scores of a query head are normalized to mean 0 and deviation 1 over its entries; a kv
/// head takes the largest of its group. Both means are from the model's
/// [profile](crate::QueryStatistics::means).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriAttention {
    /// Furthest of the positions ahead.
    pub future: usize,
}

impl Default for TriAttention {
    /// Default: up to 65,536 tokens ahead, as published.
    fn default() -> Self {
        Self { future: 65_536 }
    }
}

impl Scorer for TriAttention {
    fn name(&self) -> &str {
        "triattention"
    }

    fn summary(&self) -> String {
        format!("{} {}", self.name(), self.future)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::ahead()
    }

    fn check(&self) -> Result<()> {
        check::count("score.future", self.future)
    }

    fn reads_profile(&self) -> bool {
        true
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let statistics = view.query_statistics(self.name())?;
        let keys = view.encoded_keys(self.name())?.cast(DType::F32);
        let device = keys.device();
        let [batch, heads, columns, channels] = keys.dims();
        let (group, half) = (view.shape.group(), channels / 2);
        // Where the next query stands is 0 ahead of itself, and the last token is one behind it.
        let powers = std::iter::successors(Some(1_usize), |ahead| ahead.checked_mul(2));
        let ahead: Vec<usize> = powers.take_while(|ahead| *ahead <= self.future).collect();
        let means = table(&statistics.means, view.layer, &device);
        let asked = view.queries_ahead(means.clone(), &ahead, self.name())?.cast(DType::F32);
        let asked = asked.reshape([batch, heads, group, channels]);
        let along = precise_product(asked, keys.clone().swap_dims(2, 3));

        let lengths = |x: Tensor<4>| {
            let squares = x.square();
            (squares.clone().narrow(3, 0, half) + squares.narrow(3, half, half)).sqrt()
        };
        let varied = table(&statistics.lengths, view.layer, &device) - lengths(means);
        let varied = varied.reshape([1, heads, group, half]).expand([batch, heads, group, half]);
        let scores = along + precise_product(varied, lengths(keys).swap_dims(2, 3));

        let there = view.positions().clone().greater_equal_scalar(0).float().cast(DType::F32);
        let there = there.reshape([batch, heads, 1, columns]);
        let count = there.clone().sum_dim(3).clamp_min(1.0);
        let mean = (scores.clone() * there.clone()).sum_dim(3) / count.clone();
        let centred = (scores - mean) * there;
        let deviation = (centred.clone().square().sum_dim(3) / count).sqrt().clamp_min(1e-6);
        Ok((centred / deviation).max_dim(2).squeeze_dim(2))
    }
}
