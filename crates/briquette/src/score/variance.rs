use burn::tensor::{DType, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::{Observes, Pool, ScoreInput, Scorer, window::outside_window};
use crate::{Result, check};

/// The mean of the attention weight a token receives from the last `window` queries, plus `gamma` times its
/// variance over them, pooled along the tokens: CAKE (Qin et al., 2025, Eq. 10).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowVariance {
    /// Queries observed. Entries of the last so many tokens stay out of the pooling.
    pub window: usize,
    /// What the variance is multiplied by.
    pub gamma: f64,
    /// Pooling, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
}

impl Scorer for WindowVariance {
    fn name(&self) -> &str {
        "window-variance"
    }

    fn summary(&self) -> String {
        format!("{} {}, γ {}{}", self.name(), self.window, self.gamma, Pool::summary(self.pool))
    }

    fn observes(&self) -> Observes {
        Observes::window(self.window)
    }

    fn check(&self) -> Result<()> {
        check::count("score.window", self.window)?;
        if !(self.gamma.is_finite() && self.gamma >= 0.0) {
            return check::refuse("score.gamma", self.gamma, "0 or more");
        }
        self.pool.map_or(Ok(()), |pool| pool.check())
    }

    fn score(&self, input: &ScoreInput<'_>) -> Result<Tensor<3>> {
        let (weights, own) = input.last_queries(self.window, self.name())?;
        let (mean, variance) = moments(weights, &own);
        let scores = mean + variance * self.gamma;
        let scores = match self.pool {
            None => scores,
            Some(pool) => pool.apply(outside_window(scores, self.window)),
        };
        Ok(input.group_mean(scores))
    }
}

/// The mean and the unbiased variance over the queries of `weights`, `[batch, heads, queries, entries]`, of
/// which the last `own` are a row's own: `[batch, heads, entries]`. The variance of one query is 0.
pub(crate) fn moments(weights: Tensor<4>, own: &[usize]) -> (Tensor<3>, Tensor<3>) {
    let [batch, heads, _, entries] = weights.dims();
    let device = weights.device();
    let count = numbers(own.iter().map(|&own| own.max(1) as f32), &device);
    let others = numbers(own.iter().map(|&own| own.saturating_sub(1).max(1) as f32), &device);
    let mean = weights.clone().sum_dim(2) / count;
    let deviation = (weights - mean.clone()).square();
    let deviation = of_own_queries(deviation, own);
    let variance = deviation.sum_dim(2) / others;
    let shape = [batch, heads, entries];
    (mean.reshape(shape), variance.reshape(shape))
}

/// Numbers of queries, `[batch, heads, queries, entries]`, zero but for the last `own` queries of each row.
pub(crate) fn of_own_queries(numbers: Tensor<4>, own: &[usize]) -> Tensor<4> {
    let [batch, _, queries, _] = numbers.dims();
    if own.iter().all(|&own| own == queries) {
        return numbers;
    }
    let mask = own.iter().flat_map(|&own| {
        (0..queries).map(move |query| if query + own >= queries { 1.0 } else { 0.0 })
    });
    let data = TensorData::new(mask.collect::<Vec<f32>>(), [batch, 1, queries, 1]);
    let device = numbers.device();
    numbers * Tensor::from_data(data, (&device, DType::F32))
}

/// One number a batch row, `[batch, 1, 1, 1]`.
fn numbers(numbers: impl Iterator<Item = f32>, device: &Device) -> Tensor<4> {
    let numbers: Vec<f32> = numbers.collect();
    let batch = numbers.len();
    Tensor::from_data(TensorData::new(numbers, [batch, 1, 1, 1]), (device, DType::F32))
}
