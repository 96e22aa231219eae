use burn::tensor::{Device, Tensor};

use crate::ops::{MomentsOutput, constant_floats};

/// Sums to compute besides those of the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// [`WindowMoments::variance`].
    pub variance: bool,
    /// [`WindowMoments::entropy`].
    pub entropy: bool,
}

/// Sums of attention weights over the last queries, one number per entry and query head.
#[derive(Clone, Debug)]
pub struct WindowMoments {
    pub(crate) sums: MomentsOutput,
    /// Queries, padding counted.
    pub(crate) queries: usize,
    /// The number of queries per batch row that are not padding.
    pub(crate) own: Vec<usize>,
}

impl WindowMoments {
    /// The mean weight over the queries, padding counted as zero: `[batch, query_heads, entries]`,
    /// f32.
    pub fn mean(&self) -> Tensor<3> {
        self.sums.sums.clone() / self.queries as f64
    }

    /// The mean weight over a row's own queries, `[batch, query_heads, entries]`, f32.
    pub fn own_mean(&self) -> Tensor<3> {
        let sums = self.sums.sums.clone();
        let counts = self.counts(0, &sums.device());
        sums / counts
    }

    /// The unbiased variance of the weight over a row's own queries,
    /// `[batch, query_heads, entries]`, f32; 0 for one query. `None` if it was not requested.
    pub fn variance(&self) -> Option<Tensor<3>> {
        let deviations = self.sums.deviations.clone()?;
        let counts = self.counts(1, &deviations.device());
        Some(deviations / counts)
    }

    /// Each entry's part of the entropy of the weights, `[batch, query_heads, entries]`, f32: the
    /// sum of −w · ln(w + 10⁻¹⁰) over the queries. `None` if it was not requested.
    pub fn entropy(&self) -> Option<Tensor<3>> {
        self.sums.entropies.clone()
    }

    /// The number of queries that are not padding less `less`, at least 1: `[batch, 1, 1]`.
    fn counts(&self, less: usize, device: &Device) -> Tensor<3> {
        let counts: Vec<f32> =
            self.own.iter().map(|own| own.saturating_sub(less).max(1) as f32).collect();
        let batch = counts.len();
        constant_floats("moments", counts, [batch, 1, 1], device)
    }
}
