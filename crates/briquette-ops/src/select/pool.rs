use burn::tensor::{
    Tensor,
    module::{avg_pool1d, max_pool1d},
    ops::{AvgPoolOptions, MaxPoolOptions},
};
use serde::{Deserialize, Serialize};

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
        let padding = self.kernel / 2;
        match self.kind {
            PoolKind::Avg => avg_pool1d(
                scores,
                AvgPoolOptions {
                    kernel_size: [self.kernel],
                    stride: [1],
                    padding: [(padding, padding)],
                    count_include_pad: true,
                    ceil_mode: false,
                },
            ),
            PoolKind::Max => max_pool1d(
                scores,
                MaxPoolOptions {
                    kernel_size: [self.kernel],
                    stride: [1],
                    padding: [(padding, padding)],
                    dilation: [1],
                    ceil_mode: false,
                },
            ),
        }
    }
}
