//! Statistics of columns, f32, `[kinds · batch, n · heads, columns]`: a kv head has the numbers of
//! its heads, of each kind.

use briquette_ops::{AttentionStatistics, Result};

use crate::common::check::Check;

/// Checks the statistics of `[batch, kv_heads, columns]` entries. Returns how many numbers a kv
/// head has per column.
pub(crate) fn check(
    check: &Check,
    statistics: &AttentionStatistics,
    entries: [usize; 3],
) -> Result<usize> {
    let Some(stacked) = statistics.stacked() else { return Ok(0) };
    let [batch, kv_heads, columns] = entries;
    let heads = stacked.dims()[1];
    let grouped = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    check.value("the heads of statistics", heads, grouped, format!("a multiple of {kv_heads}"))?;
    check.shape("statistics", stacked.dims(), [statistics.len() * batch, heads, columns])?;
    check.f32("statistics", stacked.dtype())?;
    check.countable("statistics", &stacked.dims())?;
    Ok(statistics.len() * heads / kv_heads)
}

/// Checks statistics of `[batch, kv_heads, width]` entries, and the new numbers that replace them,
/// `columns` wide.
pub(crate) fn check_counted(
    check: &Check,
    statistics: &AttentionStatistics,
    counted: &AttentionStatistics,
    [batch, heads, width, columns]: [usize; 4],
) -> Result<()> {
    let kinds = statistics.len();
    check.equal("the kinds of counted", counted.len(), kinds)?;
    let (Some(statistics), Some(counted)) = (statistics.stacked(), counted.stacked()) else {
        return Ok(());
    };
    let [rows, all, _] = statistics.dims();
    let grouped = all > 0 && all % heads == 0;
    check.value("the heads of statistics", all, grouped, "those of the layer")?;
    check.shape("statistics", statistics.dims(), [kinds * batch, all, width])?;
    check.shape("counted", counted.dims(), [rows, all, columns])?;
    check.f32("statistics", statistics.dtype())?;
    check.f32("counted", counted.dtype())?;
    check.countable("counted", &counted.dims())
}
