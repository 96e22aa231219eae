//! RoCo: Ren and Zhu, 2024, *On the Efficacy of Eviction Policy for Key-Value Constrained
//! Generative Language Model Inference* ([arXiv 2402.06262](https://arxiv.org/abs/2402.06262)).
//!
//! ```text
//! m[j] = mean of A[i, j] over the queries i ≥ j so far, of the prompt and of decoding
//! d[j] = standard deviation of A[i, j] over the same queries
//! s[j] = m[j] + 2 for the r entries with the highest d, m[j] for the others;  r = ⌊std-share · B⌋
//! ```
//!
//! Protected: the first 4 tokens and the last 10.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::accumulated::queries_seen;
use crate::{
    LayerView, Result, check,
    ops::Statistic,
    score::{AttentionRequest, Scorer, support::best},
};

/// Mean attention weight that a token received from the queries that could see it; tokens with the
/// highest variation of their weights are kept first: RoCo (Ren and Zhu, 2024), "robust cache
/// omission".
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RobustAttention {
    /// Share of the budget for the tokens with the highest standard deviation.
    pub std_share: f64,
}

impl RobustAttention {
    /// Bonus that puts the tokens with the highest deviation above all others: a mean weight is at
    /// most 1.
    const ABOVE: f64 = 2.0;
}

impl Scorer for RobustAttention {
    fn name(&self) -> &str {
        "robust-attention"
    }

    fn summary(&self) -> String {
        format!("{}, {}% by deviation", self.name(), self.std_share * 100.0)
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::moments()
    }

    fn check(&self) -> Result<()> {
        check::share("score.std-share", self.std_share)
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let sums = view.statistic(Statistic::Sums, self.name())?;
        let squares = view.statistic(Statistic::Squares, self.name())?;
        let [batch, query_heads, entries] = sums.dims();
        let (heads, group) = (view.shape.kv_heads, view.shape.group());
        let queries = queries_seen(view)
            .clamp_min(1.0)
            .reshape([batch, heads, 1, entries])
            .expand([batch, heads, group, entries])
            .reshape([batch, query_heads, entries]);
        let mean = sums / queries.clone();
        let variance = squares / queries - mean.clone().square();
        let deviation = view.group_mean(variance.clamp_min(0.0).sqrt());
        let mean = view.group_mean(mean);

        let share = |&budget: &usize| (budget as f64 * self.std_share) as usize;
        let keep: Vec<usize> = view
            .budget
            .iter()
            .flat_map(|budget| std::iter::repeat_n(share(budget), heads))
            .collect();
        let first = best(view, &deviation, &keep, 0, &vec![0; keep.len()])?;
        Ok(mean + first * Self::ABOVE)
    }
}
