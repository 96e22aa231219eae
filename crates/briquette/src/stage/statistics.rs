//! Attention statistics of a policy: those that its stages observe.

use burn::tensor::{Device, Tensor};

use super::{AttentionRequest, ObservedHeads};
use crate::{
    CacheShape, Result,
    ops::{AttentionStatistics, Statistic},
    prefix::Parts,
    rows,
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

/// Returns the statistics of batch rows, in this order.
pub(crate) fn select_rows(statistics: AttentionStatistics, rows: &[usize]) -> AttentionStatistics {
    let kinds = statistics.len();
    statistics.map(|stacked| {
        let batch = stacked.dims()[0] / kinds;
        let of_kind = |kind: usize| rows.iter().map(move |row| kind * batch + row);
        rows::select_rows(stacked, &(0..kinds).flat_map(of_kind).collect::<Vec<_>>())
    })
}

/// Appends the batch rows of `more`, statistics of the same kinds and width.
pub(crate) fn append_rows(
    statistics: AttentionStatistics,
    more: AttentionStatistics,
) -> AttentionStatistics {
    let kinds = statistics.len();
    statistics.zip(more, |own, more| {
        let [own, more] = [own, more].map(|stacked| -> Tensor<4> {
            let [rows, heads, entries] = stacked.dims();
            stacked.reshape([kinds, rows / kinds, heads, entries])
        });
        let all = Tensor::cat(vec![own, more], 1);
        let [_, rows, heads, entries] = all.dims();
        all.reshape([kinds * rows, heads, entries])
    })
}
