use burn::tensor::DType;

use crate::{
    cluster_table::ClusterTable,
    entries::{Entries, Selection, gather_rows},
    error::Result,
    ops::Ops,
};

/// Expands clustered entries to one key and value per token; the key is its norm times the
/// cluster's direction.
///
/// # Errors
/// As [`ClusterOps::extend`](crate::ClusterOps::extend).
pub fn expand_clusters(entries: Entries, ops: &dyn Ops) -> Result<Entries> {
    let Some(table) = ClusterTable::of(&entries, ops)? else { return Ok(entries) };
    let [batch, heads, columns] = table.rows.dims();
    let rows = Selection { indices: table.rows, counts: vec![columns; batch * heads] };
    let norms = table.norms.unsqueeze_dim::<4>(3);
    Ok(Entries {
        keys: gather_rows(entries.keys, &rows).cast(DType::F32) * norms,
        values: gather_rows(entries.values, &rows),
        clustering: None,
        ..entries
    })
}

/// Returns the selected tokens, [expanded](expand_clusters).
///
/// # Errors
/// As [`expand_clusters`] and [`SelectOps::compact`](crate::SelectOps::compact).
pub fn select_entries(entries: Entries, selection: &Selection, ops: &dyn Ops) -> Result<Entries> {
    ops.compact(expand_clusters(entries, ops)?, selection)
}
