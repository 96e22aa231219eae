//! Appends new entries behind those held.

use std::cell::OnceCell;

use super::{
    capacity::CapacityPlan, input::LayerInput, store_guard::StoreGuard, working_set::WorkingSet,
};
use crate::{
    Result,
    cache::{context::Context, progress::InputSpan},
    ops::{
        ClusterTable, Clustering, Entries, Selection, gather_positions, gather_rows,
        gather_scalars, select_entries,
    },
    stage::statistics,
};

/// Appends the `arriving` entries to the store, or to the entries read from it; changes only
/// columns behind those held. `held` are the tokens held per batch row and kv head. A store that
/// must grow is first copied into the guard; the copy shares its buffers.
pub(in crate::cache) fn append(
    context: Context<'_>,
    input: &LayerInput,
    arriving: Entries,
    held: &[usize],
    plan: &CapacityPlan,
    guard: &mut StoreGuard,
) -> Result<WorkingSet> {
    let Context { shape, observes, .. } = context;
    let LayerInput { span, .. } = input;
    let [batch, _, columns] = arriving.positions.dims();
    let store = &mut guard.store;
    let loose = if store.columns() == 0 {
        // Attended as it came: if it is compressed, the whole of it is never stored.
        let statistics = statistics::zeros(observes, shape, batch, columns, context.device());
        Some(Entries { statistics, ..arriving })
    } else if !store.moves_padding() && padding_inside(shape.kv_heads, held, span, columns) {
        let before = store.entries()?.with_lengths(held);
        Some(padding_first(context, input, held, before, arriving)?)
    } else {
        let needed = store.columns() + columns;
        if needed > store.capacity() || span.padded {
            guard.outgrown = Some(store.clone());
            store.reserve(plan.grown(needed));
        }
        store.append(arriving, &input.arrived_by_head)?;
        None
    };
    let columns = loose.as_ref().map_or(store.columns(), Entries::columns);
    // Where tokens share, the host does not know how many of them are left.
    let padded = store.is_clustered() || input.held.iter().any(|&held| held != columns);
    let (positions, statistics) = match &loose {
        Some(loose) => (loose.positions.clone().into(), loose.statistics.clone()),
        None if padded && !input.is_told_by(store.as_ref()) => {
            let (positions, statistics) = store.scalars();
            (positions.into(), statistics)
        }
        None => (OnceCell::new(), store.statistics()),
    };
    let beside_store = loose.is_some();
    Ok(WorkingSet {
        beside_store,
        entries: loose,
        positions,
        statistics,
        columns,
        padded,
        unordered: false,
    })
}

/// Whether a row begins with padding behind entries it holds already. Padding must come before a
/// row's first entry: scorers pool over neighbours, and a row must have the same neighbours in a
/// batch as alone.
fn padding_inside(heads: usize, held: &[usize], span: &InputSpan, columns: usize) -> bool {
    let held = held.chunks(heads);
    let mut rows = span.positions.chunks(columns).zip(held);
    span.padded && rows.any(|(new, held)| held.iter().any(|&held| held > 0) && new[0] < 0)
}

/// Returns the entries held `before` and the `arriving` ones behind them, with all padding in
/// front. `held_before` are the tokens held per batch row and kv head.
fn padding_first(
    context: Context<'_>,
    input: &LayerInput,
    held_before: &[usize],
    before: Entries,
    arriving: Entries,
) -> Result<Entries> {
    let Context { shape, config, .. } = context;
    let LayerInput { span, held, .. } = input;
    let (heads, ops) = (shape.kv_heads, config.ops.as_ref());
    let columns = arriving.columns();
    // The last so many of those before, and the new ones.
    let selection = |counts: &[usize], before: usize| {
        let of_head = |(head, &count): (usize, &usize)| -> Vec<usize> {
            let new = &span.positions[head / heads * columns..][..columns];
            let new = (0..columns).filter(|&column| new[column] >= 0);
            (before - count..before).chain(new.map(|column| before + column)).collect()
        };
        let lists: Vec<Vec<usize>> = counts.iter().enumerate().map(of_head).collect();
        // A call whose queries are all padding has no fewer entries than queries either.
        Selection::of_heads(&lists, heads, context.device()).widened(columns)
    };
    let tokens = selection(held_before, before.columns());
    let rows = before.clustering.as_ref().map(Clustering::row_counts);
    let rows = rows.map(|counts| selection(&counts, before.keys.dims()[2]));
    let all = before.followed_by(arriving);
    let Some(rows) = rows else { return Ok(select_entries(all, &tokens, ops)?) };
    let tokens = tokens.rounded();
    let entries = Entries {
        keys: gather_rows(all.keys, &rows),
        values: gather_rows(all.values, &rows),
        positions: gather_positions(all.positions, &tokens),
        statistics: all.statistics.map(|statistic| gather_scalars(statistic, &tokens)),
        clustering: all.clustering,
    };
    let entries = entries.with_lengths(held);
    let table = ClusterTable::of(&entries, ops)?;
    let clustering =
        table.map(|table| table.into_clustering(&entries.positions, held, ops)).transpose()?;
    Ok(Entries { clustering, ..entries })
}
