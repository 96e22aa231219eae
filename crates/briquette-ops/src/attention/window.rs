use burn::tensor::{DType, Tensor};

use super::{scoring::Scoring, visibility::Visibility, weights::block_weights};
use crate::constant::constant_floats;
use crate::product::Precision;

/// A window of queries, and the keys of the entries of a layer.
#[derive(Clone, Debug)]
pub struct WindowInput {
    /// Queries, positions encoded, `[batch, query_heads, queries, head_dim]`.
    pub queries: Tensor<4>,
    /// Keys, positions encoded, `[batch, kv_heads, entries, head_dim]`.
    pub keys: Tensor<4>,
    /// Visibility of entries to queries.
    pub visibility: Visibility,
    /// How query-key products become weights.
    pub scoring: Scoring,
}

/// A window of queries whose attention weights are summed.
#[derive(Clone, Debug)]
pub struct MomentsInput {
    /// Queries and keys.
    pub window: WindowInput,
    /// Number of queries of each batch row that count: its last ones. The others are left out of
    /// all sums.
    pub own: Vec<usize>,
    /// Whether to return [`MomentsOutput::deviations`].
    pub deviations: bool,
    /// Whether to return [`MomentsOutput::entropies`].
    pub entropies: bool,
}

/// Sums over the queries of a window that count, per entry, `[batch, query_heads, entries]`, f32.
#[derive(Clone, Debug)]
pub struct MomentsOutput {
    /// Sums of the weights w.
    pub sums: Tensor<3>,
    /// Sums of the squared deviations of the weights from their mean over the queries.
    pub deviations: Option<Tensor<3>>,
    /// Sums of −w · ln(w + 10⁻¹⁰).
    pub entropies: Option<Tensor<3>>,
}

/// Computes the weights of the window as one block of queries.
pub(super) fn window_weights(input: WindowInput) -> Tensor<4> {
    let WindowInput { queries, keys, mut visibility, scoring } = input;
    if scoring.reads_positions() {
        visibility = visibility.by_position(&queries, &keys);
    }
    let rows = queries.dims()[2];
    let entries = keys.dims()[2];
    let precision = Precision::of(&[queries.dtype(), keys.dtype()], &queries.device());
    block_weights(
        queries.cast(DType::F32) * scoring.scale,
        keys.cast(DType::F32).swap_dims(2, 3),
        &visibility,
        &scoring,
        0..rows,
        entries.saturating_sub(rows),
        precision,
    )
}

/// Sums `weights`, `[batch, query_heads, queries, entries]`, over the last `own` queries of each
/// batch row.
pub(super) fn moments(
    weights: Tensor<4>,
    own: &[usize],
    deviations: bool,
    entropies: bool,
) -> MomentsOutput {
    let [batch, heads, _, entries] = weights.dims();
    let device = weights.device();
    let weights = of_own_queries(weights, own);
    let sum = |x: Tensor<4>| x.sum_dim(2).reshape([batch, heads, entries]);
    let sums = sum(weights.clone());
    let deviations = deviations.then(|| {
        let counts: Vec<f32> = own.iter().map(|&own| own.max(1) as f32).collect();
        let counts = constant_floats("window counts", counts, [batch, 1, 1, 1], &device);
        let mean = weights.clone().sum_dim(2) / counts;
        sum(of_own_queries((weights.clone() - mean).square(), own))
    });
    let entropies = entropies.then(|| sum(-(weights.clone() * (weights + 1e-10).log())));
    MomentsOutput { sums, deviations, entropies }
}

/// Sets `numbers`, `[batch, heads, queries, entries]`, to zero except for the last `own` queries of
/// each batch row.
fn of_own_queries(numbers: Tensor<4>, own: &[usize]) -> Tensor<4> {
    let [batch, _, queries, _] = numbers.dims();
    if own.iter().all(|&own| own == queries) {
        return numbers;
    }
    let mask = own.iter().flat_map(|&own| {
        (0..queries).map(move |query| if query + own >= queries { 1.0 } else { 0.0 })
    });
    let device = numbers.device();
    numbers * constant_floats("own queries", mask.collect(), [batch, 1, queries, 1], &device)
}
