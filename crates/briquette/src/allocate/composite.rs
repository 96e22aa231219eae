use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator};
use crate::{LayerView, Result};

/// Layer budgets by composite tokens: the best tokens of all heads of a layer form the first
/// composite token, the second best the next. The composite tokens with the highest scores stay,
/// whichever layer they are in. KVCompose (Akulov et al., 2025, [arXiv
/// 2509.05165](https://arxiv.org/abs/2509.05165)).
///
/// The score of a composite token is the mean over the heads. The first layer takes, rank for rank,
/// the highest scores of all layers, and so gets as much as any. Each layer keeps at least one
/// composite token besides the protected ones. Layers share one budget where the scores of all are
/// known before any is compressed; otherwise each has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Composite {}

/// A layer: the number of entries it always keeps, and the scores of its composite tokens in
/// falling order.
struct Layer {
    sure: usize,
    scores: Vec<f64>,
}

impl Allocator for Composite {
    fn name(&self) -> &str {
        "composite"
    }

    fn reads_scores(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let mut all = self.allocate_together(std::slice::from_ref(view))?;
        Ok(all.pop().unwrap_or(Allocation::Rows(Vec::new())))
    }

    fn allocate_together(&self, views: &[LayerView<'_>]) -> Result<Vec<Allocation>> {
        let scores: Vec<Vec<f32>> = views
            .iter()
            .map(|view| Ok(view.scores(self.name())?.clone().try_into_vec_as::<f32>()?))
            .collect::<Result<_>>()?;
        let mut keep = vec![Vec::new(); views.len()];
        for row in 0..views.first().map_or(0, |view| view.budget.len()) {
            let layers = views.iter().zip(&scores);
            let layers = layers.map(|(view, scores)| layer(view, scores, row)).collect();
            let total = views.iter().map(|view| view.budget[row]).sum();
            for (keep, share) in keep.iter_mut().zip(share(layers, total)) {
                keep.push(share);
            }
        }
        Ok(keep.into_iter().map(Allocation::Rows).collect())
    }
}

/// Composite tokens of a layer, without its protected entries.
fn layer(view: &LayerView<'_>, scores: &[f32], row: usize) -> Layer {
    let heads = view.shape.kv_heads;
    let (mut sums, mut sure) = (Vec::new(), 0);
    for head in row * heads..(row + 1) * heads {
        let mut own = view.unprotected(scores, head, view.budget[row]).to_vec();
        sure = sure.max(view.lengths[head] - own.len());
        own.sort_unstable_by(|a, b| b.total_cmp(a));
        sums.resize(sums.len().max(own.len()), 0.0);
        for (sum, score) in sums.iter_mut().zip(own) {
            *sum += f64::from(score) / heads as f64;
        }
    }
    Layer { sure, scores: sums }
}

/// Share of each layer in `total`; of equal scores the first wins.
fn share(mut layers: Vec<Layer>, total: usize) -> Vec<usize> {
    let ranks = layers.iter().map(|layer| layer.scores.len()).max().unwrap_or(0);
    let most = |rank: usize| {
        let of_layer = |layer: &Layer| layer.scores.get(rank).copied();
        layers.iter().filter_map(of_layer).fold(f64::NEG_INFINITY, f64::max)
    };
    let most: Vec<f64> = (0..ranks).map(most).collect();
    if let Some(first) = layers.first_mut() {
        first.scores = most;
    }
    let sure: usize = layers.iter().map(|layer| layer.sure).sum();
    let numbered = layers.iter().enumerate();
    let mut all: Vec<(f64, usize)> = numbered
        .flat_map(|(number, layer)| layer.scores.iter().map(move |&score| (score, number)))
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut keep: Vec<usize> = layers.iter().map(|layer| layer.sure).collect();
    for (_, number) in all.into_iter().take(total.saturating_sub(sure)) {
        keep[number] += 1;
    }
    keep.into_iter().map(|keep| keep.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_composites_stay_and_the_first_layer_gets_most() {
        let layer = |sure, scores: &[f64]| Layer { sure, scores: scores.to_vec() };
        let layers = || vec![layer(1, &[5.0, 1.0, 0.5]), layer(1, &[4.0, 3.0, 0.2])];
        // The first layer's are 5, 3 and 0.5: of 5, 4, 3, 3, 0.5 and 0.2 the first three.
        assert_eq!(share(layers(), 5), [3, 2]);
        assert_eq!(share(layers(), 6), [3, 3]);
        assert_eq!(share(layers(), 2), [1, 1]);
        assert_eq!(share(layers(), 9), [4, 4]);
        assert_eq!(share(vec![layer(0, &[5.0]), layer(0, &[4.0])], 1), [1, 1]);
    }
}
