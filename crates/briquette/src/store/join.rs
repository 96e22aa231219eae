//! Entries of two stores as rows of one batch.

use burn::tensor::{Int, Tensor};

use super::{Store, StoreOptions};
use crate::{
    Result,
    columns::{longest, right_aligned, right_aligned_entries},
    ops::{ClusterTable, Entries, Ops, norm, unit},
    rows::{append_int_rows, append_rows},
    stage::statistics,
};

/// Lays the entries of two stores out anew in one that is built `empty`: the rows of the first, and
/// behind them those of the second. `counts` are the numbers of entries per batch row and kv head,
/// `options` those of the first store.
///
/// # Errors
/// The errors of [`Store::entries`] and [`Store::replace`].
pub(super) fn append_entries<S: Store + 'static>(
    [own, more]: [&dyn Store; 2],
    counts: [&[usize]; 2],
    options: &StoreOptions,
    empty: impl FnOnce(StoreOptions) -> S,
) -> Result<Option<Box<dyn Store>>> {
    let rows = (counts[0].len() + counts[1].len()) / options.shape.kv_heads;
    let mut all = empty(options.with_batch(rows));
    let capacity = own.capacity().max(more.capacity());
    let own = own.entries()?.with_lengths(counts[0]);
    let more = more.entries()?.with_lengths(counts[1]);
    let of_all = counts.concat();
    all.replace(joined([own, more], counts, options.ops.as_ref())?, &of_all, capacity)?;
    Ok(Some(Box::new(all)))
}

fn joined(entries: [Entries; 2], counts: [&[usize]; 2], ops: &dyn Ops) -> Result<Entries> {
    let of_all = counts.concat();
    let columns = longest(&of_all);
    if entries.iter().all(|entries| entries.clustering.is_none()) {
        return Ok(joined_tokens(entries, columns));
    }
    let [own, more] = entries;
    let table = |entries: &Entries, lengths: &[usize]| -> Result<ClusterTable> {
        let table = ClusterTable::of(entries, ops)?;
        Ok(table.unwrap_or_else(|| ClusterTable::of_unclustered(entries, lengths)))
    };
    let tables = [table(&own, counts[0])?, table(&more, counts[1])?];
    let row_counts = [&tables[0].row_counts[..], &tables[1].row_counts].concat();
    let rows = longest(&row_counts);
    let [of_own, of_more] = tables;
    let (own, of_own) = aligned(own, of_own, columns, rows);
    let (more, of_more) = aligned(more, of_more, columns, rows);
    let table = ClusterTable {
        row_counts,
        rows: append_int_rows(of_own.rows, of_more.rows),
        norms: append_rows(of_own.norms, of_more.norms),
        representatives: append_int_rows(of_own.representatives, of_more.representatives),
    };
    let entries = appended(own, more);
    let clustering = table.into_clustering(&entries.positions, &of_all, ops)?;
    Ok(Entries { clustering: Some(clustering), ..entries })
}

/// Joins entries that have a row each, right-aligned in `columns` columns.
pub(super) fn joined_tokens(entries: [Entries; 2], columns: usize) -> Entries {
    let [own, more] = entries.map(|entries| right_aligned_entries(entries, columns));
    appended(own, more)
}

/// Appends the batch rows of `more`, of as many columns and rows per head.
fn appended(own: Entries, more: Entries) -> Entries {
    Entries {
        keys: append_rows(own.keys, more.keys),
        values: append_rows(own.values, more.values),
        positions: append_int_rows(own.positions, more.positions),
        statistics: statistics::append_rows(own.statistics, more.statistics),
        clustering: None,
    }
}

/// Right-aligns tokens in `columns` columns and their clusters in `rows` rows. Keys become
/// directions, as at a compression: those of tokens in no cluster are none yet.
fn aligned(
    entries: Entries,
    table: ClusterTable,
    columns: usize,
    rows: usize,
) -> (Entries, ClusterTable) {
    let by_columns = columns as i64 - entries.columns() as i64;
    let by_rows = rows as i64 - entries.keys.dims()[2] as i64;
    let moved =
        |x: Tensor<3, Int>, by: i64, width: usize| right_aligned((x + by).clamp_min(0), width, 0);
    let lengths: Tensor<3> = norm(entries.keys.clone()).squeeze_dim(3);
    let norms = table.norms * lengths.gather(2, table.rows.clone());
    let table = ClusterTable {
        row_counts: table.row_counts,
        rows: moved(table.rows, by_rows, columns),
        norms: right_aligned(norms, columns, 0),
        representatives: moved(table.representatives, by_columns, rows),
    };
    let Entries { keys, values, positions, statistics, .. } = entries;
    let entries = Entries {
        keys: right_aligned(unit(keys), rows, 0),
        values: right_aligned(values, rows, 0),
        positions: right_aligned(positions, columns, -1),
        statistics: statistics.map(|statistic| right_aligned(statistic, columns, 0)),
        clustering: None,
    };
    (entries, table)
}
