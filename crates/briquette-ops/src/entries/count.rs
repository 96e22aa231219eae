use burn::tensor::Tensor;

use super::{AttentionStatistics, Statistic, group_mean};

/// Attention that entries have received, and the statistics it is added to.
#[derive(Clone, Debug)]
pub struct CountInput<'a> {
    /// Statistics of each entry, `[batch, heads, columns]` per kind, f32.
    pub statistics: AttentionStatistics,
    /// Weights of one query of each query head, or their sums, `[batch, query_heads, columns]`,
    /// f32: `query_heads` is a multiple of `heads`, and the mean of the query heads that share a
    /// head is added to its statistics.
    pub weights: Tensor<3>,
    /// Kinds of statistics that they are added to; those that are not there are ignored. To
    /// [`Statistic::Squares`] the mean of their squares is added, which must be those of one query.
    pub kinds: &'a [Statistic],
}

/// Adds weights to statistics: the reference of [`EntryOps::count`](super::EntryOps::count).
pub(super) fn count(input: CountInput<'_>) -> AttentionStatistics {
    let CountInput { mut statistics, weights, kinds } = input;
    let Some(heads) = statistics.stacked().map(|statistics| statistics.dims()[1]) else {
        return statistics;
    };
    let is_there =
        |kind| kinds.contains(&kind) && statistics.iter().any(|(there, _)| there == kind);
    let squares = is_there(Statistic::Squares).then(|| group_mean(weights.clone().square(), heads));
    let means = group_mean(weights, heads);
    let added = kinds.iter().map(|&kind| match (&squares, kind) {
        (Some(squares), Statistic::Squares) => (kind, squares.clone()),
        _ => (kind, means.clone()),
    });
    statistics.add(&added.collect::<Vec<_>>());
    statistics
}
