//! CompressKV: Lin et al., 2025, *CompressKV: Semantic Retrieval Heads Know What Tokens are Not
//! Important Before Generation* ([arXiv 2508.02401](https://arxiv.org/abs/2508.02401)): the query
//! heads whose attention counts.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use crate::{HeadScoreKind, LayerView, Result, check};

/// Retrieval heads of a layer, by the model's [`Profile`](crate::Profile) (CompressKV).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetrievalHeads {
    /// Measure of the profile that ranks the heads.
    #[serde(default)]
    pub by: HeadScoreKind,
    /// Number of heads.
    pub pick: Pick,
}

/// Number of heads that are picked per layer, the highest scores first.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pick {
    /// A fixed number; all heads if the layer has fewer.
    Top(usize),
    /// Heads with a score, divided by the sum over the layer's heads, above a threshold
    /// (CompressKV, appendix L.2).
    Adaptive {
        /// Threshold τ, 0 to 1; the paper tries 0.001 to 0.007.
        threshold: f64,
        /// Minimum number of heads.
        least: usize,
    },
}

impl RetrievalHeads {
    /// Picks the best `heads` heads of a layer by their attention on whole answers.
    pub fn top(heads: usize) -> Self {
        Self { by: HeadScoreKind::Semantic, pick: Pick::Top(heads) }
    }

    pub(crate) fn summary(&self) -> String {
        let kind = match self.by {
            HeadScoreKind::Semantic => "semantic",
            HeadScoreKind::CopyPaste => "copy-paste",
            HeadScoreKind::Headkv => "headkv",
        };
        match self.pick {
            Pick::Top(count) => format!("top {count} {kind} heads"),
            Pick::Adaptive { threshold, .. } => format!("{kind} heads above {threshold}"),
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.pick {
            Pick::Top(heads) => check::count("score.heads.retrieval.pick.top", heads),
            Pick::Adaptive { threshold, least } => {
                check::count("score.heads.retrieval.pick.adaptive.least", least)?;
                check::share("score.heads.retrieval.pick.adaptive.threshold", threshold)
            }
        }
    }

    /// Returns the heads picked in a layer with these scores, ascending; of equal scores the lower
    /// head.
    pub fn heads(&self, scores: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        let count = match self.pick {
            Pick::Top(count) => count,
            Pick::Adaptive { threshold, least } => {
                // Scores are not negative, so their sum is their L1 norm.
                let sum: f64 = scores.iter().sum();
                let above = |&&score: &&f64| sum > 0.0 && score / sum > threshold;
                scores.iter().filter(above).count().max(least)
            }
        };
        order.truncate(count);
        order.sort_unstable();
        order
    }

    /// Returns the mean over the heads picked, the same for every kv head: `[batch, query_heads,
    /// entries]` becomes `[batch, kv_heads, entries]`.
    pub(crate) fn mean(&self, scores: Tensor<3>, view: &LayerView<'_>) -> Result<Tensor<3>> {
        let profile = view.profile("window-attention")?;
        let heads = self.heads(&profile.heads.get(self.by)[view.layer]);
        Ok(view.mean_of(scores, &heads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_scores_are_picked() {
        let scores = [0.1, 0.4, 0.3, 0.4];
        assert_eq!(RetrievalHeads::top(2).heads(&scores), [1, 3]);
        assert_eq!(RetrievalHeads::top(9).heads(&scores), [0, 1, 2, 3]);
        let adaptive = |threshold, least| RetrievalHeads {
            by: HeadScoreKind::Semantic,
            pick: Pick::Adaptive { threshold, least },
        };
        // Of 1.2 in all they are 0.083, 0.333, 0.25 and 0.333.
        assert_eq!(adaptive(0.24, 1).heads(&scores), [1, 2, 3]);
        assert_eq!(adaptive(0.3, 1).heads(&scores), [1, 3]);
        assert_eq!(adaptive(0.5, 1).heads(&scores), [1]);
        assert_eq!(adaptive(0.001, 1).heads(&scores), [0, 1, 2, 3]);
        assert_eq!(adaptive(0.0, 1).heads(&[0.0, 0.0]), [0]);
    }
}
