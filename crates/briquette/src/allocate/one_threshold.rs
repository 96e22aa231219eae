use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result};

/// One threshold on the scores for all heads of all layers; the highest scores stay, wherever they
/// are. KVzip (Kim et al., 2025, [arXiv 2505.23416](https://arxiv.org/abs/2505.23416)).
///
/// Protected entries are always kept, and each head keeps at least one entry. All layers share one
/// budget where the scores of all are known before any is compressed; otherwise the heads of each
/// layer share its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneThreshold {}

/// Scores of one head that compete for the rest of the budget.
struct Head {
    /// Number of entries it always keeps.
    sure: usize,
    scores: Vec<f32>,
}

impl Allocator for OneThreshold {
    fn name(&self) -> &str {
        "one-threshold"
    }

    fn reads_scores(&self) -> bool {
        true
    }

    fn allocates_heads(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let mut all = self.allocate_together(std::slice::from_ref(view))?;
        Ok(all.pop().unwrap_or(Allocation::Heads(Vec::new())))
    }

    fn allocate_together(&self, views: &[LayerView<'_>]) -> Result<Vec<Allocation>> {
        let mut keep = vec![Vec::new(); views.len()];
        let scores: Vec<Vec<f32>> = views
            .iter()
            .map(|view| Ok(view.scores(self.name())?.clone().try_into_vec_as::<f32>()?))
            .collect::<Result<_>>()?;
        let rows = views.first().map_or(0, |view| view.budget.len());
        for row in 0..rows {
            let heads: Vec<Head> = views
                .iter()
                .zip(&scores)
                .flat_map(|(view, scores)| {
                    (0..view.shape.kv_heads).map(move |head| of_head(view, scores, row, head))
                })
                .collect();
            let total: usize =
                views.iter().map(|view| view.budget[row] * view.shape.kv_heads).sum();
            let sure: usize = heads.iter().map(|head| head.sure).sum();
            let mut kept = share(&heads, total.saturating_sub(sure)).into_iter();
            for (keep, view) in keep.iter_mut().zip(views) {
                keep.extend(kept.by_ref().take(view.shape.kv_heads));
            }
        }
        Ok(keep.into_iter().map(Allocation::Heads).collect())
    }
}

/// Scores of the entries of a head that are not protected.
fn of_head(view: &LayerView<'_>, scores: &[f32], row: usize, head: usize) -> Head {
    let index = row * view.shape.kv_heads + head;
    let mut scores = view.unprotected(scores, index, view.budget[row]).to_vec();
    let mut sure = view.lengths[index] - scores.len();
    if sure == 0 && !scores.is_empty() {
        // No head is left with nothing.
        let best =
            (0..scores.len()).max_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(b.cmp(&a)));
        scores.swap_remove(best.unwrap_or(0));
        sure = 1;
    }
    Head { sure, scores }
}

/// Number of entries that each head keeps if the `most` highest scores of all stay; of equal scores
/// the first wins.
fn share(heads: &[Head], most: usize) -> Vec<usize> {
    let mut all: Vec<f32> = heads.iter().flat_map(|head| head.scores.iter().copied()).collect();
    if most >= all.len() {
        return heads.iter().map(|head| head.sure + head.scores.len()).collect();
    }
    if most == 0 {
        return heads.iter().map(|head| head.sure).collect();
    }
    let (_, &mut threshold, _) = all.select_nth_unstable_by(most - 1, |a, b| b.total_cmp(a));
    let above = |score: &&f32| score.total_cmp(&threshold).is_gt();
    let equal = |score: &&f32| score.total_cmp(&threshold).is_eq();
    let mut left = most - all.iter().filter(above).count();
    let of_head = |head: &Head| {
        let equals = head.scores.iter().filter(equal).count().min(left);
        left -= equals;
        head.sure + head.scores.iter().filter(above).count() + equals
    };
    heads.iter().map(of_head).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_of_all_heads_stay() {
        let head = |sure, scores: &[f32]| Head { sure, scores: scores.to_vec() };
        let heads = [head(1, &[5.0, 1.0, 3.0]), head(2, &[3.0, 0.5]), head(0, &[3.0, 4.0])];
        // 5, 4, and the first two of three 3s.
        assert_eq!(share(&heads, 4), [3, 3, 1]);
        assert_eq!(share(&heads, 0), [1, 2, 0]);
        assert_eq!(share(&heads, 2), [2, 2, 1]);
        assert_eq!(share(&heads, 9), [4, 4, 2]);
    }
}
