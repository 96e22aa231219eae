use burn::tensor::{
    Tensor, TensorData,
    module::max_pool1d,
    ops::{MaxPoolOptions, PadMode},
};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    host::{HostInput, is_host},
};

/// Pooling of scores along the entries, so that the neighbours of an important token are kept with
/// it (SnapKV).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pool {
    /// Mean or maximum.
    pub kind: PoolKind,
    /// Number of entries that a score is pooled over, centred on its own: odd.
    pub kernel: usize,
}

/// Statistic that pooling takes of a neighbourhood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolKind {
    /// The mean, with zeros beyond the ends.
    Avg,
    /// The maximum.
    Max,
}

impl Pool {
    /// Mean pooling.
    pub fn avg(kernel: usize) -> Self {
        Self { kind: PoolKind::Avg, kernel }
    }

    /// Maximum pooling.
    pub fn max(kernel: usize) -> Self {
        Self { kind: PoolKind::Max, kernel }
    }

    /// Returns a few words for tables.
    pub fn summary(pool: Option<Self>) -> String {
        pool.map_or(String::new(), |pool| {
            format!(", {} pool {}", format!("{:?}", pool.kind).to_lowercase(), pool.kernel)
        })
    }

    /// Pools `scores`, `[batch, heads, entries]`, along the entries.
    pub fn apply(&self, scores: Tensor<3>) -> Tensor<3> {
        if self.kernel == 1 {
            return scores;
        }
        if is_host(&scores.device())
            && let Ok(pooled) = self.on_host(&scores)
        {
            return pooled;
        }
        let padding = self.kernel / 2;
        match self.kind {
            // CubeK compiles its mean pooling for each length; windows of a view are a mean alike.
            PoolKind::Avg => scores
                .pad([(padding, padding)], PadMode::Constant(0.0))
                .unfold::<4, _>(2, self.kernel, 1)
                .mean_dim(3)
                .squeeze_dim(3),
            PoolKind::Max => {
                let options = MaxPoolOptions::new([self.kernel]).with_stride([1]);
                max_pool1d(scores, options.with_padding([padding]))
            }
        }
    }

    /// Row by row: Burn's pooling waits for threads, longer than a row of scores takes.
    fn on_host(&self, scores: &Tensor<3>) -> Result<Tensor<3>> {
        let columns = scores.dims()[2];
        let numbers = HostInput("pool").view::<f32, _>(scores)?;
        let mut pooled = Vec::with_capacity(numbers.len());
        for row in numbers.chunks_exact(columns.max(1)) {
            for column in 0..columns {
                let start = column.saturating_sub(self.kernel / 2);
                let end = (column + self.kernel / 2 + 1).min(columns);
                let around = row[start..end].iter().copied();
                pooled.push(match self.kind {
                    PoolKind::Avg => around.sum::<f32>() / self.kernel as f32,
                    // What is not a number stays to be seen.
                    PoolKind::Max => around.fold(f32::NEG_INFINITY, |most, score| {
                        if score > most || score.is_nan() { score } else { most }
                    }),
                });
            }
        }
        let data = TensorData::new(pooled, scores.dims());
        Ok(Tensor::from_data(data, (&scores.device(), scores.dtype())))
    }
}
