use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{Observes, Scorer};
use crate::{LayerView, Result, ops::Track};

/// The attention weight a token has received from all queries since it was written, prompt and decoding
/// together: H2O (Zhang et al., 2023), `F_score`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccumulatedAttention {
    /// Whether the sum is divided by the number of queries it was taken over.
    pub normalize: Normalize,
}

/// What an accumulated weight is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalize {
    /// Nothing: the sum, as in H2O.
    #[default]
    Sum,
    /// The number of queries that could see the token, which frees the score from its bias towards early
    /// tokens.
    Mean,
}

impl Scorer for AccumulatedAttention {
    fn name(&self) -> &str {
        "accumulated-attention"
    }

    fn observes(&self) -> Observes {
        Observes::column_sums()
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let sums = view.group_mean(view.track(Track::Sums, self.name())?);
        Ok(match self.normalize {
            Normalize::Sum => sums,
            Normalize::Mean => {
                let queries = queries_seen(view, &sums.device());
                sums / queries
            }
        })
    }
}

/// The queries that could see each entry, `[batch, kv_heads, entries]`, f32. A token sees itself, so the last one
/// was seen once.
pub(super) fn queries_seen(view: &LayerView<'_>, device: &Device) -> Tensor<3> {
    let seen: Vec<f32> = view.seen.iter().map(|&seen| seen as f32).collect();
    let data = TensorData::new(seen, [view.seen.len(), 1, 1]);
    let seen = Tensor::<3>::from_data(data, (device, DType::F32));
    seen - view.positions().clone().float().cast(DType::F32)
}
