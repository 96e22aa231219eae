use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use super::{Allocation, Allocator, apportion::apportion};
use crate::{LayerView, Result, ops::Statistic, score::AttentionRequest, view::Bounds};

/// Layer budgets that are larger where attention is spread evenly: D2O (Wan et al., 2024, section
/// 4.1, Eq. 4 and 5).
///
/// The density F of a layer is the variance over the tokens of the weight that each has received
/// from the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VarianceShare {
    /// Function from densities to shares.
    #[serde(default)]
    pub share: Share,
    /// Whether the heads' variances are scaled to between 0 and 1 within their layer before their
    /// mean is taken, as in the authors' code. Unscaled variances grow with the prompt, and their
    /// softmax gives nearly everything to one layer.
    pub normalize: bool,
}

/// Functions from densities F to shares of the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Share {
    /// Proportional to exp(−F).
    #[default]
    Softmax,
    /// Proportional to 1 / F.
    Inverse,
    /// Proportional to exp(−r), with r the number of layers of smaller density; of equal densities
    /// the lower layer counts as smaller.
    ExponentialDecay,
}

/// Minimum share of a prompt's tokens that a layer keeps, from the authors' code.
const LEAST: f64 = 0.01;

impl Allocator for VarianceShare {
    fn name(&self) -> &str {
        "variance-share"
    }

    fn summary(&self) -> String {
        let share = match self.share {
            Share::Softmax => "softmax",
            Share::Inverse => "inverse",
            Share::ExponentialDecay => "exponential decay",
        };
        format!("{}, {share}", self.name())
    }

    fn observes(&self) -> AttentionRequest {
        AttentionRequest::column_sums_of_query_heads()
    }

    fn measures(&self) -> bool {
        true
    }

    fn measure(&self, view: &LayerView<'_>) -> Result<Vec<f64>> {
        let sums = view.statistic(Statistic::Sums, self.name())?;
        let [rows, heads, columns] = sums.dims();
        let (kv_heads, group) = (view.shape.kv_heads, heads / view.shape.kv_heads);
        let sums = sums.cast(DType::F32).try_into_vec_as::<f32>()?;
        let density = |(row, sums): (usize, &[f32])| {
            let variances: Vec<f64> = sums
                .chunks(columns)
                .enumerate()
                .map(|(head, sums)| {
                    let held = view.lengths[row * kv_heads + head / group];
                    let head = &sums[columns - held..];
                    // A row that has received nothing but padding has no variance.
                    let own = held.max(1) as f64;
                    let mean = head.iter().map(|&x| f64::from(x)).sum::<f64>() / own;
                    head.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / own
                })
                .collect();
            self.density(&variances)
        };
        Ok(sums.chunks(heads * columns).enumerate().take(rows).map(density).collect())
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn allocate(&self, view: &LayerView<'_>) -> Result<Allocation> {
        let of_row = |row: usize| {
            // What is decoded changes no share.
            let measured = view.measures.seen(view.layer, row);
            let (budget, seen) = (view.budget[row], measured.unwrap_or(view.seen[row]));
            let least = ((LEAST * seen as f64).ceil() as usize).max(view.protect.sinks + 1);
            let least = least.min(budget);
            let most = seen.max(budget);
            let bounds = Bounds { total: view.shape.layers * budget, least, most };
            view.share(row, bounds, self.name(), |densities| {
                let layers = 0..densities.len();
                let weights: Vec<f64> = layers.map(|layer| self.weight(densities, layer)).collect();
                apportion(&weights, bounds)
            })
        };
        let rows: Result<_> = (0..view.budget.len()).map(of_row).collect();
        Ok(Allocation::Rows(rows?))
    }
}

impl VarianceShare {
    /// Density of a layer from the variances of its heads.
    fn density(&self, variances: &[f64]) -> f64 {
        let heads = variances.len() as f64;
        if !self.normalize {
            return variances.iter().sum::<f64>() / heads;
        }
        let low = variances.iter().copied().fold(f64::INFINITY, f64::min);
        let high = variances.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if high <= low {
            return 0.0;
        }
        variances.iter().map(|variance| (variance - low) / (high - low)).sum::<f64>() / heads
    }

    fn weight(&self, densities: &[f64], layer: usize) -> f64 {
        let density = densities[layer];
        match self.share {
            Share::Softmax => (-density).exp(),
            Share::Inverse => 1.0 / (density + 1e-6),
            Share::ExponentialDecay => {
                let others = densities.iter().enumerate();
                let smaller = |&(other, f): &(usize, &f64)| {
                    f.total_cmp(&density).then(other.cmp(&layer)).is_lt()
                };
                (-(others.filter(smaller).count() as f64)).exp()
            }
        }
    }
}
