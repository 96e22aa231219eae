//! Attention statistics of a policy: those that its stages observe.

use burn::tensor::Device;

use super::{AttentionRequest, ObservedHeads};
use crate::{
    CacheShape, Result,
    ops::{AttentionStatistics, Statistic},
    prefix::Parts,
};

/// Statistics that a policy with this request keeps.
fn kinds(observes: AttentionRequest) -> Vec<Statistic> {
    let AttentionRequest { column_sums, column_squares, local, chunk, .. } = observes;
    let mut kinds = Vec::new();
    if column_sums || local > 0 {
        kinds.push(Statistic::Sums);
    }
    if column_squares {
        kinds.push(Statistic::Squares);
    }
    if local > 0 {
        kinds.extend([Statistic::LocalPast, Statistic::LocalCurrent]);
    }
    if chunk > 0 {
        kinds.push(Statistic::Chunk);
    }
    kinds
}

/// Number of heads of each statistic.
fn heads(observes: AttentionRequest, shape: CacheShape) -> usize {
    match observes.heads {
        ObservedHeads::Kv => shape.kv_heads,
        ObservedHeads::Query => shape.query_heads,
    }
}

/// Number of numbers per entry: the statistics of all heads together, each in a row of its own.
pub(crate) fn rows(observes: AttentionRequest, shape: CacheShape) -> usize {
    kinds(observes).len() * heads(observes, shape)
}

/// Statistics of new entries, all zero.
pub(crate) fn zeros(
    observes: AttentionRequest,
    shape: CacheShape,
    batch: usize,
    entries: usize,
    device: &Device,
) -> AttentionStatistics {
    AttentionStatistics::zeros(&kinds(observes), [batch, heads(observes, shape), entries], device)
}

/// Puts statistics among the parts of a prefix.
pub(crate) fn save(statistics: &AttentionStatistics, parts: &mut Parts) -> Result<()> {
    statistics.stacked().map_or(Ok(()), |stacked| parts.put("statistics", stacked))
}

/// Takes the statistics of a prefix in place of `none`, which has the same kinds and shape.
pub(crate) fn restore(
    none: AttentionStatistics,
    parts: &mut Parts,
    device: &Device,
) -> Result<AttentionStatistics> {
    let Some(dims) = none.stacked().map(|stacked| stacked.dims()) else { return Ok(none) };
    let stacked = parts.take_float("statistics", dims, device)?;
    Ok(none.map(|_| stacked))
}

/// Repeats the statistics of one batch row for `rows` rows.
pub(crate) fn repeated(statistics: AttentionStatistics, rows: usize) -> AttentionStatistics {
    statistics.map(|stacked| {
        let [kinds, heads, entries] = stacked.dims();
        let all = stacked.unsqueeze_dim::<4>(1).expand([kinds, rows, heads, entries]);
        all.reshape([kinds * rows, heads, entries])
    })
}
