use burn::tensor::DType;

use crate::{
    entries::{Entries, Selection, gather_rows},
    error::Result,
    ops::Ops,
    table::Table,
};

/// A row a column: tokens that share get equal keys, but for their norms, and values; that they share is forgotten.
///
/// # Errors
/// As [`ClusterOps::extend`](crate::ClusterOps::extend).
pub fn laid_out(entries: Entries, ops: &dyn Ops) -> Result<Entries> {
    let Some(table) = Table::of(&entries, ops)? else { return Ok(entries) };
    let [batch, heads, columns] = table.rows.dims();
    let rows = Selection { indices: table.rows, counts: vec![columns; batch * heads] };
    let norms = table.norms.unsqueeze_dim::<4>(3);
    Ok(Entries {
        keys: gather_rows(entries.keys, &rows).cast(DType::F32) * norms,
        values: gather_rows(entries.values, &rows),
        sharing: None,
        ..entries
    })
}

/// The selected tokens, [laid out](laid_out).
///
/// # Errors
/// As [`laid_out`] and [`SelectOps::compact`](crate::SelectOps::compact).
pub fn select_entries(entries: Entries, selection: &Selection, ops: &dyn Ops) -> Result<Entries> {
    ops.compact(laid_out(entries, ops)?, selection)
}
