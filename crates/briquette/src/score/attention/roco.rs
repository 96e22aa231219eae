//! RoCo: Ren and Zhu, 2024, *On the Efficacy of Eviction Policy for Key-Value Constrained
//! Generative Language Model Inference* ([arXiv 2402.06262](https://arxiv.org/abs/2402.06262)).
//!
//! ```text
//! m[j] = mean of A[i, j] over the queries i ≥ j so far, of the prompt and of decoding
//! d[j] = standard deviation of A[i, j] over the same queries
//! s[j] = m[j] + 2 for the r entries with the highest d, and those equal to the last of them,
//!        m[j] for the others;  r = ⌊std-share · B⌋
//! ```
//!
//! Protected: the first 4 tokens and the last 10.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{
    LayerView, Result, check,
    ops::{RobustInput, Statistic},
    score::{AttentionRequest, Dependencies, Scorer},
};

/// Mean attention weight that a token received from the queries that could see it; tokens with the
/// highest variation of their weights are kept first: RoCo (Ren and Zhu, 2024), "robust cache
/// omission".
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RoCo {
    /// Share of the budget for the tokens with the highest standard deviation.
    pub std_share: f64,
}

impl Scorer for RoCo {
    fn name(&self) -> &str {
        "roco"
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

    fn depends_on(&self) -> Dependencies {
        Dependencies { budget: true, ..Dependencies::none() }
    }

    fn score(&self, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let share = |&budget: &usize| (budget as f64 * self.std_share) as usize;
        let of_heads = |budget| std::iter::repeat_n(share(budget), view.shape.kv_heads);
        let keep: Vec<usize> = view.budget.iter().flat_map(of_heads).collect();
        Ok(view.ops.robust_scores(RobustInput {
            sums: view.statistic(Statistic::Sums, self.name())?,
            squares: view.statistic(Statistic::Squares, self.name())?,
            positions: view.positions().clone(),
            // A decoded token is the last of its row, and among the entries of each head.
            seen: view.prompt.then_some(view.seen),
            keep: &keep,
        })?)
    }
}
