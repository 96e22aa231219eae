//! CapKV, 2026 ([arXiv 2604.25975](https://arxiv.org/abs/2604.25975)).
//!
//! ```text
//! μ    = mean of the prompt's queries, turned as in Expected Attention
//! w[j] = exp(τ (cos(k[j], μ) − the largest cosine))
//! A    = I + Σ w v vᵀ over the entries of a head
//! s[j] = w[j] · v[j]ᵀ A⁻¹ v[j], the mean of a group
//! ```
//!
//! Protected: the first 4 tokens, left out of all of it.

use burn::tensor::{DType, Tensor};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{precise_product, unit},
    score::{
        AttentionRequest, Scorer,
        support::{inverse, scored},
    },
};

/// Share of a value that the other values cannot predict, weighted by how well the key matches the
/// next queries: CapKV ([arXiv 2604.25975](https://arxiv.org/abs/2604.25975)).
///
/// s = w · vᵀA⁻¹v with A = I + Σ w v vᵀ over the entries of a head; w = exp(τ cos(k, μ) − max), and
/// μ the mean query since the last compression, turned by the mean rotation of the next positions;
/// sinks are left out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapKv {
    /// Temperature of the weights of keys by their cosine with the mean query: τ.
    pub tau: f64,
    /// Number of future positions.
    pub future: usize,
}

impl Scorer for CapKv {
    fn name(&self) -> &str {
        "capkv"
    }

    fn summary(&self) -> String {
        format!("{}, τ {}", self.name(), self.tau)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::queries().and(AttentionRequest::ahead())
    }

    fn check(&self) -> Result<()> {
        check::window("score.future", self.future)?;
        check::positive("score.tau", self.tau)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        // Added to each weight in A, as in the published code.
        const EPSILON: f64 = 1e-6;
        let mean = view.queries(self.name())?.mean(view.protect.sinks);
        let mean = unit(precise_product(mean, view.mean_rotation(self.future, self.name())?));
        let keys = unit(view.encoded_keys(self.name())?);
        let values = view.values()?.cast(DType::F32);
        let [batch, heads, columns, channels] = keys.dims();
        let group = view.shape.group();
        let scored = scored(view).unsqueeze_dim::<4>(3);
        let mask = scored.clone().float().cast(DType::F32);

        let mean = mean.reshape([batch, heads, group, channels]);
        let of_member = |member: usize| {
            let mean = mean.clone().narrow(2, member, 1).swap_dims(2, 3);
            let powers = precise_product(keys.clone(), mean).clamp(-1.0, 1.0) * self.tau;
            let powers = powers.mask_fill(scored.clone().bool_not(), -1e30);
            let weights = (powers.clone() - powers.max_dim(2)).exp() * mask.clone();
            let scaled = values.clone() * ((weights.clone() + EPSILON) * mask.clone());
            (weights, precise_product(scaled.swap_dims(2, 3), values.clone()))
        };
        let (weights, capacities): (Vec<_>, Vec<_>) = (0..group).map(of_member).unzip();
        // Of all members at once: they are read from the device.
        let inverses = inverse(Tensor::cat(capacities, 1), 1.0, self.name())?;
        let mut sum = Tensor::zeros([batch, heads, columns], (&keys.device(), DType::F32));
        for (member, weights) in weights.into_iter().enumerate() {
            let inverse = inverses.clone().narrow(1, member * heads, heads);
            let leverage = (precise_product(values.clone(), inverse) * values.clone()).sum_dim(3);
            sum = sum + (weights * leverage).squeeze_dim::<3>(3);
        }
        Ok(sum / group as f64)
    }
}
