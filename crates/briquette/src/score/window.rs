use burn::tensor::{Tensor, s};
use serde::{Deserialize, Serialize};

use super::{Observes, Pool, ScoreInput, Scorer};
use crate::{Error, Result};

/// The attention weight a token receives from the last `window` queries, pooled along the tokens.
///
/// SnapKV (Li et al., 2024, section 4) with a window of 32 and one set of tokens a kv head; TOVA (Oren et
/// al., 2024) with a window of one query and one set a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowAttention {
    /// Queries observed. Entries of the last so many tokens stay out of the pooling.
    pub window: usize,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Which query heads a score is the mean of.
    #[serde(default)]
    pub heads: HeadMean,
}

/// Which query heads share one score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadMean {
    /// Those that share a kv head.
    #[default]
    Group,
    /// All of the layer.
    Layer,
}

impl Scorer for WindowAttention {
    fn name(&self) -> &str {
        "window-attention"
    }

    fn observes(&self) -> Observes {
        Observes::window(self.window)
    }

    fn check(&self) -> Result<()> {
        if self.window == 0 {
            return Err(Error::InvalidParameter {
                parameter: "score.window",
                value: "0".into(),
                must_be: "at least 1".into(),
            });
        }
        self.pool.map_or(Ok(()), |pool| pool.check())
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Tensor<3>> {
        let Some(weights) = input.window else {
            return Err(super::missing_observation(self.name(), "window"));
        };
        let [batch, query_heads, _, entries] = weights.dims();
        let scores = weights.clone().mean_dim(2).reshape([batch, query_heads, entries]);
        let scores = match self.pool {
            None => scores,
            Some(pool) => {
                // The window's own entries are kept anyway. Zeros in their place pool like the
                // padding beyond an end.
                let outside = entries.saturating_sub(self.window);
                let scores = scores.slice_fill(s![.., .., outside..], 0.0);
                pool.apply(scores)
            }
        };
        Ok(match self.heads {
            HeadMean::Group => input.group_mean(scores),
            HeadMean::Layer => input.layer_mean(scores),
        })
    }
}
