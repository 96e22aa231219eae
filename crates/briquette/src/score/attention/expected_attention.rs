//! Expected Attention: Devoto et al., 2025, *Expected Attention: KV Cache Compression by Estimating
//! Attention from Future Queries Distribution* ([arXiv
//! 2510.00636](https://arxiv.org/abs/2510.00636)).
//!
//! ```text
//! μ, Σ = mean and covariance of the prompt's queries before rotation, sinks left out
//! R    = mean rotation of the next positions;  μ ← Rμ,  Σ ← RΣRᵀ
//! a    = softmax behind the sinks of (k · μ / √d + kᵀΣk / 2d), the mean of a group
//! s[j] = (a[j] + ε) · ‖v[j]‖
//! ```
//!
//! Protected: the first 4 tokens.

use burn::tensor::{DType, Tensor, activation::softmax};
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{norm, precise_product},
    score::{AttentionRequest, Scorer, support::scored},
};

/// Attention that a token is expected to receive from the next queries, times the length of its
/// value: Expected Attention (Devoto et al., 2025, [arXiv
/// 2510.00636](https://arxiv.org/abs/2510.00636)).
///
/// Queries are assumed to be normally distributed, with the mean and covariance of the queries
/// since the last compression before their positions are encoded, sinks left out; the mean rotation
/// of the next positions turns both. For a normal query, exp(q · k / √d) has the mean exp(k · μ /
/// √d + kᵀΣk / 2d).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedAttention {
    /// Number of future positions.
    pub future: usize,
    /// Number added to the attention before it is multiplied by the length of the value: ε.
    #[serde(default)]
    pub epsilon: f64,
}

impl Scorer for ExpectedAttention {
    fn name(&self) -> &str {
        "expected-attention"
    }

    fn summary(&self) -> String {
        format!("{} {}, ε {}", self.name(), self.future, self.epsilon)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::queries().and(AttentionRequest::ahead())
    }

    fn check(&self) -> Result<()> {
        check::window("score.future", self.future)?;
        match self.epsilon.is_finite() && self.epsilon >= 0.0 {
            true => Ok(()),
            false => check::refuse("score.epsilon", self.epsilon, "at least 0"),
        }
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let (mean, covariance) = view.queries(self.name())?.moments(view.protect.sinks);
        let turn = view.mean_rotation(self.future, self.name())?;
        let mean = precise_product(mean, turn.clone());
        let covariance =
            precise_product(precise_product(turn.clone().swap_dims(2, 3), covariance), turn);
        let keys = view.encoded_keys(self.name())?.cast(DType::F32);
        let [batch, heads, columns, channels] = keys.dims();
        let group = view.shape.group();
        let others = scored(view).bool_not();

        let mean = mean.reshape([batch, heads, group, channels]);
        let covariance = covariance.reshape([batch, heads, group * channels, channels]);
        let mut sum = Tensor::zeros([batch, heads, columns], (&keys.device(), DType::F32));
        for member in 0..group {
            let mean = mean.clone().narrow(2, member, 1).swap_dims(2, 3);
            let covariance = covariance.clone().narrow(2, member * channels, channels);
            let spread = (precise_product(keys.clone(), covariance) * keys.clone()).sum_dim(3);
            let powers = precise_product(keys.clone(), mean) * view.scale
                + spread * (view.scale * view.scale / 2.0);
            let powers = powers.squeeze_dim::<3>(3).mask_fill(others.clone(), -1e30);
            sum = sum + softmax(powers, 2);
        }
        let lengths = norm(view.values()?).squeeze_dim::<3>(3);
        Ok((sum / group as f64 + self.epsilon) * lengths)
    }
}
