//! Leverage, the first half of Compactor: Chari and Van Durme, 2025, *Compactor: Calibrated
//! Query-Agnostic KV Cache Compression with Approximate Leverage Scores* ([arXiv
//! 2507.08143](https://arxiv.org/abs/2507.08143)).
//!
//! ```text
//! X    = keys of a head before rotation, less their mean, seen through a random sketch
//! s[j] = X[j] (XᵀX + λI)⁻¹ X[j]ᵀ
//! ```
//!
//! Protected: the first 8 tokens, left out of X, and the last 4.

use burn::tensor::{DType, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::precise_product,
    score::{
        Scorer,
        support::{inverse, scored},
    },
};

/// Statistical leverage of a key, which measures how far it stands out from the space of the keys
/// of its head: diag(X (XᵀX + λI)⁻¹ Xᵀ) of the centred keys X, projected by a random sketch where
/// they have more channels (Chari and Van Durme, 2025, [arXiv
/// 2507.08143](https://arxiv.org/abs/2507.08143)).
///
/// Sinks are left out. The cache must hold the keys without positions:
/// [`PositionMode::Deferred`](crate::policy::PositionMode).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leverage {
    /// Number of channels of the sketch. Keys with no more channels are used as they are: a sketch
    /// that loses nothing changes nothing.
    pub sketch: usize,
    /// Regularization: λ.
    pub ridge: f64,
    /// Seed of the sketch.
    #[serde(default)]
    pub seed: u64,
}

impl Default for Leverage {
    /// Defaults: 48 channels, λ = 0.01.
    fn default() -> Self {
        Self { sketch: 48, ridge: 0.01, seed: 0 }
    }
}

impl Scorer for Leverage {
    fn name(&self) -> &str {
        "leverage"
    }

    fn summary(&self) -> String {
        format!("{}, sketch {}", self.name(), self.sketch)
    }

    fn check(&self) -> Result<()> {
        check::window("score.sketch", self.sketch)?;
        check::positive("score.ridge", self.ridge)
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let scored = scored(view).unsqueeze_dim::<4>(3);
        let mask = scored.float().cast(DType::F32);
        let keys = view.keys()?.cast(DType::F32) * mask.clone();
        let number = mask.clone().sum_dim(2).clamp_min(1.0);
        let keys = (keys.clone() - keys.sum_dim(2) / number) * mask;
        let keys = match self.sketch < keys.dims()[3] {
            true => precise_product(keys.clone(), self.projection(view.layer, &keys)),
            false => keys,
        };
        let gram = precise_product(keys.clone().swap_dims(2, 3), keys.clone());
        let inverse = inverse(gram, self.ridge, self.name())?;
        Ok((precise_product(keys.clone(), inverse) * keys).sum_dim(3).squeeze_dim::<3>(3))
    }
}

impl Leverage {
    /// Random sketch: normal numbers over the root of the sketch's channels, `[1, heads, channels,
    /// sketch]`, a function of seed, layer and head.
    fn projection(&self, layer: usize, keys: &Tensor<4>) -> Tensor<4> {
        let [_, heads, _, channels] = keys.dims();
        let scale = 1.0 / (self.sketch as f64).sqrt();
        let numbers = (0..heads).flat_map(|head| {
            (0..channels * self.sketch)
                .map(move |index| (normal(self.seed, [layer, head, index]) * scale) as f32)
        });
        let data = TensorData::new(numbers.collect(), [1, heads, channels, self.sketch]);
        Tensor::from_data(data, (&keys.device(), DType::F32))
    }
}

/// Normal number that is a function of these (SplitMix64, Box and Muller).
fn normal(seed: u64, parts: [usize; 3]) -> f64 {
    let mix = |x: u64| {
        let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let bits = parts.into_iter().fold(mix(seed), |x, part| mix(x ^ part as u64));
    // 1 to 2^53 over 2^53: its logarithm is finite.
    let uniform = |bits: u64| ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64;
    let (radius, angle) = (uniform(bits), uniform(mix(bits)));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sketch_is_normal() {
        let numbers: Vec<f64> = (0..20_000).map(|index| normal(3, [1, 0, index])).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let square = numbers.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05, "{mean}, {square}");
    }
}
